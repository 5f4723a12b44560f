package apiserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"mend/internal/apiserver"
	"mend/internal/testkit"
)

// podWrites are writes of a Pod named name, in a namespace that nobody else uses, each by
// the client under test; others prepare. They return what the client got.
var podWrites = map[string]func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error){
	"create": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		return client.CoreV1().Pods(namespace).Create(ctx, richPod(namespace, name), metav1.CreateOptions{})
	},
	"create in the namespace of the client": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		return client.CoreV1().Pods(namespace).Create(ctx, richPod("", name), metav1.CreateOptions{})
	},
	"create elsewhere": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		return client.CoreV1().Pods(namespace).Create(ctx, richPod("elsewhere", name), metav1.CreateOptions{})
	},
	"create in no namespace": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		return client.CoreV1().Pods("").Create(ctx, richPod(namespace, name), metav1.CreateOptions{})
	},
	"create where there is no namespace": func(ctx context.Context, client kubernetes.Interface, _, name string) (any, error) {
		return client.CoreV1().Pods("missing").Create(ctx, richPod("missing", name), metav1.CreateOptions{})
	},
	"create with a generated name": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		p := richPod(namespace, "")
		p.GenerateName = name + "-"
		return client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	},
	"create without a name": func(ctx context.Context, client kubernetes.Interface, namespace, _ string) (any, error) {
		return client.CoreV1().Pods(namespace).Create(ctx, richPod(namespace, ""), metav1.CreateOptions{})
	},
	"create what is there": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		if _, err := client.CoreV1().Pods(namespace).Create(ctx, richPod(namespace, name), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		return client.CoreV1().Pods(namespace).Create(ctx, richPod(namespace, name), metav1.CreateOptions{})
	},
	"create what is wrong": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		p := richPod(namespace, name)
		p.Spec.Containers[0].Name, p.Spec.RestartPolicy, p.Labels["a b"] = "Not_A_Name", "Sometimes", "c"
		return client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	},
	"create what is not admitted": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		p := richPod(namespace, name)
		p.Spec.RuntimeClassName = ptr.To("kata")
		return client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	},
	"create with what the server sets": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		p := richPod(namespace, name)
		p.UID, p.CreationTimestamp, p.DeletionTimestamp, p.Status.Phase = "mine", metav1.Now(), ptr.To(metav1.Now()), corev1.PodRunning
		return client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	},
	"create with two owners": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		p := richPod(namespace, name)
		p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0])
		return client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	},
	"create for a dry run": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		return client.CoreV1().Pods(namespace).Create(ctx, richPod(namespace, name), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	},
	"create as another manager": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		return client.CoreV1().Pods(namespace).Create(ctx, richPod(namespace, name), metav1.CreateOptions{FieldManager: "me"})
	},
	"status": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		p.Status = runningStatus()
		return client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}),
	"status twice": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		p.Status = runningStatus()
		p, err := client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		if err != nil {
			return nil, err
		}
		p.Status.Conditions, p.Status.PodIPs, p.Status.PodIP = p.Status.Conditions[:1], []corev1.PodIP{{IP: "10.0.0.9"}}, "10.0.0.9"
		p.Status.ContainerStatuses[0].RestartCount++
		return client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}),
	"status that changes nothing": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		return client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}),
	"status with a changed spec": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		p.Spec.Containers[0].Image, p.Labels, p.OwnerReferences = "other:1", map[string]string{"new": "label"}, nil
		p.Status = runningStatus()
		return client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}),
	"status of an old version": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		p.ResourceVersion, p.Status.Message = "1", "old"
		return client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}),
	"status of another Pod": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		p.UID, p.Status.Message = "other", "new"
		return client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}),
	"status that is wrong": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		p.Status = runningStatus()
		p.Status.NominatedNodeName = "not/a/node"
		return client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}),
	"status of no Pod": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		return client.CoreV1().Pods(namespace).UpdateStatus(ctx, richPod(namespace, name), metav1.UpdateOptions{})
	},
	"bind":                    onPod(bindTo("Node", "n1")),
	"bind to what is no node": onPod(bindTo("Pod", "n1")),
	"bind twice": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		if _, err := bindTo("Node", "n1")(ctx, client, p); err != nil {
			return nil, err
		}
		return bindTo("Node", "n2")(ctx, client, p)
	}),
	"bind another Pod": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		p.UID = "other"
		return bindTo("Node", "n1")(ctx, client, p)
	}),
	"bind no Pod": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		return bindTo("Node", "n1")(ctx, client, richPod(namespace, name))
	},
	"delete": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		return nil, client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})
	}),
	"delete in grace": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		if _, err := bindTo("Node", "n1")(ctx, client, p); err != nil {
			return nil, err
		}
		return nil, client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})
	}),
	"delete another Pod": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		return nil, client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")})
	}),
	"delete for a dry run": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		return nil, client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	}),
	"delete with an unknown policy": onPod(func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		return nil, client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletionPropagation("some"))})
	}),
	"delete no Pod": func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		return nil, client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	},
}

// onPod is a write to a Pod that is there, and must not change what it is given.
func onPod(write func(context.Context, kubernetes.Interface, *corev1.Pod) (any, error)) func(context.Context, kubernetes.Interface, string, string) (any, error) {
	return func(ctx context.Context, client kubernetes.Interface, namespace, name string) (any, error) {
		p, err := client.CoreV1().Pods(namespace).Create(ctx, richPod(namespace, name), metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return write(ctx, client, p)
	}
}

func bindTo(kind, node string) func(context.Context, kubernetes.Interface, *corev1.Pod) (any, error) {
	return func(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (any, error) {
		return nil, client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Annotations: map[string]string{"bound": "by me"}},
			Target:     corev1.ObjectReference{Kind: kind, Name: node},
		}, metav1.CreateOptions{})
	}
}

// richPod has something in most parts of a Pod that a ReplicaSet's template has.
func richPod(namespace, name string) *corev1.Pod {
	p := pod(name)
	p.Namespace = namespace
	p.Labels, p.Annotations = map[string]string{"app": "web", "tier": "front"}, map[string]string{"note": "x", "empty": ""}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "u1", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}
	c := &p.Spec.Containers[0]
	c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 80}, {ContainerPort: 53, Protocol: corev1.ProtocolUDP}}
	c.Env = []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("0.5"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("http")}}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/tmp"}}
	p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "init:1", Command: []string{"true"}}}
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	p.Spec.NodeSelector, p.Spec.Tolerations = map[string]string{}, []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}
	p.Spec.HostNetwork, p.Spec.SecurityContext = false, &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(1000))}
	return p
}

func runningStatus() corev1.PodStatus {
	at := metav1.NewTime(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	return corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: "192.0.2.1", HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}},
		PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}, StartTime: &at, QOSClass: corev1.PodQOSBurstable,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: at},
		},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Ready: true, Started: ptr.To(true), Image: "i", ImageID: "i@sha256:1",
			ContainerID: "containerd://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}}},
	}
}

// TestDirectWritesDoWhatRequestsDo makes each write through the handlers and past them: what
// the client gets, the error to its last word, and what is stored must be the same.
func TestDirectWritesDoWhatRequestsDo(t *testing.T) {
	s := testkit.StartAPIServer(t)
	for _, user := range []string{"replicaset", "stranger"} {
		var groups []string
		if user == "stranger" {
			groups = []string{"nobody"}
		}
		request := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(s.ClientConfig(user, groups...)))
		direct := must[kubernetes.Interface](t)(s.Server.Client(user, groups...))
		for name, write := range podWrites {
			t.Run(user+"/"+name, func(t *testing.T) {
				want, got := written(t, s, request, write), written(t, s, direct, write)
				if works := []string{"create", "status", "status twice", "bind", "delete"}; user == "replicaset" && slices.Contains(works, name) && strings.Contains(want, `"error"`) {
					t.Errorf("it fails: %s", want)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-request +direct):\n%s", diff)
				}
			})
		}
	}
}

var namespaces int

// written is what a write gave and left behind, without what is by chance.
func written(t *testing.T, s *testkit.APIServer, client kubernetes.Interface, write func(context.Context, kubernetes.Interface, string, string) (any, error)) string {
	t.Helper()
	ctx := testContext(t)
	namespaces++
	namespace := fmt.Sprintf("space-%d", namespaces)
	must[*corev1.Namespace](t)(s.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))
	got, err := write(ctx, client, namespace, "pod")
	stored := must[*corev1.PodList](t)(s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{}))
	result := map[string]any{"got": got, "stored": stored.Items}
	if err != nil {
		result["got"] = nil // a request that fails gives an empty object
		status := apierrors.APIStatus(nil)
		if !errors.As(err, &status) {
			t.Fatalf("%T is no status: %v", err, err)
		}
		result["error"] = status.Status()
	}
	text, err := json.MarshalIndent(result, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	for _, chance := range []struct{ pattern, is string }{
		{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22,}`, "UID"},
		{`"resourceVersion": "[0-9]+"`, `"resourceVersion": ""`},
		{`pod-[a-z0-9]{5}\b`, "pod-x"},
		{namespace + `\b`, "space"},
		{`(\d\d-\d\dT)\d\d:\d\d:\d\dZ`, "$1"},
	} {
		text = regexp.MustCompile(chance.pattern).ReplaceAll(text, []byte(chance.is))
	}
	return string(text)
}

func TestADirectWriteLeavesItsArgumentsAlone(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	client := must[kubernetes.Interface](t)(s.Server.Client("agent"))
	pods := client.CoreV1().Pods("default")
	given := richPod("", "a")
	before := given.DeepCopy()
	made := must[*corev1.Pod](t)(pods.Create(ctx, given, metav1.CreateOptions{}))
	if diff := cmp.Diff(before, given); diff != "" {
		t.Errorf("create changed it:\n%s", diff)
	}
	made.Status = runningStatus()
	before = made.DeepCopy()
	changed := must[*corev1.Pod](t)(pods.UpdateStatus(ctx, made, metav1.UpdateOptions{}))
	if diff := cmp.Diff(before, made); diff != "" {
		t.Errorf("the status's update changed it:\n%s", diff)
	}
	changed.Status.Conditions[0].Message, changed.Spec.Containers[0].Image = "scribbled over", "other"
	// A list comes from the watch cache.
	stored := must[*corev1.PodList](t)(s.Client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})).Items[0]
	if stored.Status.Conditions[0].Message != "" || stored.Spec.Containers[0].Image == "other" {
		t.Error("the answer shares memory with what others read")
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(made.UID))}
	ok(t, pods.Delete(ctx, "a", options))
	if options.GracePeriodSeconds != nil {
		t.Error("the options of the deletion were changed")
	}
}

func TestADirectWriteEndsWithItsCallerAndWithTheServer(t *testing.T) {
	s := testkit.StartAPIServer(t)
	server := must[*apiserver.Server](t)(apiserver.New(apiserver.Config{Etcd: s.Store.Client()}))
	running, stop := context.WithCancel(testContext(t))
	stopped := make(chan error, 1)
	go func() { stopped <- server.Run(running) }()
	testkit.WaitFor(t, "the second server", server.Ready)
	client := must[kubernetes.Interface](t)(server.Client("agent"))
	ended, cancel := context.WithCancel(testContext(t))
	cancel()
	if _, err := client.CoreV1().Pods("default").Create(ended, richPod("", "a"), metav1.CreateOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has ended: %v", err)
	}
	stop()
	ok(t, <-stopped)
	_, err := client.CoreV1().Pods("default").Create(testContext(t), richPod("", "a"), metav1.CreateOptions{})
	if err == nil || !apierrors.IsServiceUnavailable(err) && !strings.Contains(err.Error(), "stop") {
		t.Errorf("a server that has stopped: %v", err)
	}
}

func TestADirectWriteIsCounted(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	client := must[kubernetes.Interface](t)(s.Server.Client("agent"))
	counted := func() string {
		text := must[[]byte](t)(s.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx))
		return strings.Join(regexp.MustCompile(`(?m)^apiserver_request_total\{.*resource="pods".*verb="(POST|DELETE)".*$`).FindAllString(string(text), -1), "\n")
	}
	before := counted()
	must[*corev1.Pod](t)(client.CoreV1().Pods("default").Create(ctx, richPod("", "counted"), metav1.CreateOptions{}))
	ok(t, client.CoreV1().Pods("default").Delete(ctx, "counted", metav1.DeleteOptions{}))
	if after := counted(); after == before || !strings.Contains(after, `code="201"`) || !strings.Contains(after, `verb="DELETE"`) {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
