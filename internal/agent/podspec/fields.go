package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	apiresource "k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/apis/core/pods"
)

// field is what a fieldRef of an environment variable gives.
func (h Host) field(ref *v1.ObjectFieldSelector, pod *v1.Pod, podIPs []string) (string, error) {
	path, _, err := pods.ConvertDownwardAPIFieldLabel(ref.APIVersion, ref.FieldPath, "")
	if err != nil {
		return "", err
	}
	switch path {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		if len(h.NodeIPs) == 0 {
			return "", nil
		}
		return h.NodeIPs[0], nil
	case "status.hostIPs":
		return strings.Join(h.NodeIPs, ","), nil
	case "status.podIP":
		if len(podIPs) == 0 {
			return "", nil
		}
		return podIPs[0], nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	return MetadataField(pod, path)
}

// MetadataField is what a fieldRef of a volume gives: one of the Pod's metadata
// fields, possibly with a subscript ("metadata.labels['app']").
func MetadataField(pod *v1.Pod, path string) (string, error) {
	if field, key, ok := subscript(path); ok {
		switch field {
		case "metadata.annotations":
			if why := validation.IsQualifiedName(strings.ToLower(key)); len(why) != 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(why, ";"))
			}
			return pod.Annotations[key], nil
		case "metadata.labels":
			if why := validation.IsQualifiedName(key); len(why) != 0 {
				return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(why, ";"))
			}
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	switch path {
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func subscript(path string) (field, key string, ok bool) {
	inner, closed := strings.CutSuffix(path, "']")
	if !closed {
		return "", "", false
	}
	field, key, ok = strings.Cut(inner, "['")
	return field, key, ok && field != ""
}

// formatMap writes name="value" lines, sorted.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(lines, "\n")
}

// ResourceField is what a resourceFieldRef gives, of container itself or of the
// one that ref names. Where a container has no limit it is the node's
// allocatable amount.
func (h Host) ResourceField(ref *v1.ResourceFieldSelector, pod *v1.Pod, container *v1.Container) (string, error) {
	if ref.ContainerName != "" || container == nil {
		return apiresource.ExtractResourceValueByContainerNameAndNodeAllocatable(ref, pod, ref.ContainerName, h.Allocatable)
	}
	c := container.DeepCopy()
	if c.Resources.Limits == nil {
		c.Resources.Limits = v1.ResourceList{}
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		if q, ok := c.Resources.Limits[name]; !ok || q.IsZero() {
			c.Resources.Limits[name] = resourceOrZero(h.Allocatable, name)
		}
	}
	return apiresource.ExtractContainerResourceValue(ref, c)
}

func resourceOrZero(list v1.ResourceList, name v1.ResourceName) resource.Quantity {
	if q, ok := list[name]; ok {
		return q.DeepCopy()
	}
	return resource.Quantity{}
}
