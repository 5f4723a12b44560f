package podspec

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"

	v1 "k8s.io/api/core/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Annotations that a container carries so that an agent which starts later knows
// what it needs to know; names are the kubelet's.
const (
	HashAnnotation                   = "io.kubernetes.container.hash"
	RestartCountAnnotation           = "io.kubernetes.container.restartCount"
	TerminationMessagePathAnnotation = "io.kubernetes.container.terminationMessagePath"
	TerminationMessagePolicy         = "io.kubernetes.container.terminationMessagePolicy"
	PreStopAnnotation                = "io.kubernetes.container.preStopHandler"
	PortsAnnotation                  = "io.kubernetes.container.ports"
	DeletionGracePeriodAnnotation    = "io.kubernetes.pod.deletionGracePeriod"
	TerminationGracePeriodAnnotation = "io.kubernetes.pod.terminationGracePeriod"
)

func identityLabels(pod *v1.Pod) map[string]string {
	return map[string]string{
		kubelettypes.KubernetesPodNameLabel:      pod.Name,
		kubelettypes.KubernetesPodNamespaceLabel: pod.Namespace,
		kubelettypes.KubernetesPodUIDLabel:       string(pod.UID),
	}
}

func sandboxLabels(pod *v1.Pod) map[string]string {
	labels := maps.Clone(pod.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, identityLabels(pod))
	return labels
}

func containerLabels(pod *v1.Pod, c *v1.Container) map[string]string {
	labels := identityLabels(pod)
	labels[kubelettypes.KubernetesContainerNameLabel] = c.Name
	return labels
}

func containerAnnotations(pod *v1.Pod, c *v1.Container, attempt uint32) map[string]string {
	notes := map[string]string{
		HashAnnotation:                   Hash(c),
		RestartCountAnnotation:           strconv.FormatUint(uint64(attempt), 10),
		TerminationMessagePathAnnotation: c.TerminationMessagePath,
		TerminationMessagePolicy:         string(c.TerminationMessagePolicy),
	}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		notes[DeletionGracePeriodAnnotation] = strconv.FormatInt(*grace, 10)
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		notes[TerminationGracePeriodAnnotation] = strconv.FormatInt(*grace, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if raw, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			notes[PreStopAnnotation] = string(raw)
		}
	}
	if len(c.Ports) > 0 {
		if raw, err := json.Marshal(c.Ports); err == nil {
			notes[PortsAnnotation] = string(raw)
		}
	}
	return notes
}

// Hash identifies those fields of a container whose change needs a new instance
// of it: its name and image. It is written into the container's annotations.
func Hash(c *v1.Container) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%q %q", c.Name, c.Image)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}
