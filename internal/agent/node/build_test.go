package node

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func observed(change ...func(*Observed)) Observed {
	o := Observed{
		Machine: Machine{Capacity: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"),
			v1.ResourcePods: resource.MustParse("110"), v1.ResourceEphemeralStorage: resource.MustParse("10Gi"),
		}},
		Reserve: v1.ResourceList{v1.ResourceMemory: resource.MustParse("256Mi")}, IPs: []string{"192.0.2.1"}, KubeletPort: 10250, KubeletVersion: "v1.37.2+mend",
		Runtime: RuntimeState{Name: "containerd", Version: "2.4.2", Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
		}},
		Images: []*runtimeapi.Image{{Id: "a", Size: 1, RepoTags: []string{"small:1"}}, {Id: "b", Size: 2, RepoTags: []string{"1", "2", "3", "4", "5"}, RepoDigests: []string{"d"}}},
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

func TestBuild(t *testing.T) {
	have := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{Capacity: v1.ResourceList{"example.com/x": resource.MustParse("3")}}}
	n := build(have, observed(), now)
	quantities := func(l v1.ResourceList) map[v1.ResourceName]string {
		m := map[v1.ResourceName]string{}
		for name, q := range l {
			m[name] = q.String()
		}
		return m
	}
	want := map[v1.ResourceName]string{"cpu": "2", "memory": "768Mi", "pods": "110", "ephemeral-storage": "10Gi", "example.com/x": "3"}
	if diff := cmp.Diff(want, quantities(n.Status.Allocatable)); diff != "" {
		t.Errorf("allocatable (-want +got):\n%s", diff)
	}
	var conditions []string
	for _, c := range n.Status.Conditions {
		conditions = append(conditions, string(c.Type)+" "+string(c.Status)+" "+c.Reason+": "+c.Message)
	}
	if diff := cmp.Diff([]string{
		"MemoryPressure False KubeletHasSufficientMemory: kubelet has sufficient memory available",
		"DiskPressure False KubeletHasNoDiskPressure: kubelet has no disk pressure",
		"PIDPressure False KubeletHasSufficientPID: kubelet has sufficient PID available",
		"Ready True KubeletReady: kubelet is posting ready status",
	}, conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]v1.ContainerImage{{Names: []string{"d", "1", "2", "3", "4"}, SizeBytes: 2}, {Names: []string{"small:1"}, SizeBytes: 1}}, n.Status.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]v1.NodeAddress{{Type: "InternalIP", Address: "192.0.2.1"}, {Type: "Hostname", Address: "n"}}, n.Status.Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if n.Status.NodeInfo.ContainerRuntimeVersion != "containerd://2.4.2" || n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
		t.Errorf("%+v", n.Status)
	}
	later := build(n, observed(), now.Add(time.Hour))
	if differs(n, later) {
		t.Errorf("an hour later nothing changed, and yet:\n%s", cmp.Diff(n.Status, later.Status))
	}
	if c := later.Status.Conditions[0]; !c.LastTransitionTime.Time.Equal(now) || !c.LastHeartbeatTime.Time.Equal(now.Add(time.Hour)) {
		t.Errorf("times: %+v", c)
	}
	more := build(n, observed(func(o *Observed) { o.Machine.Capacity[v1.ResourcePods] = resource.MustParse("5") }), now)
	if !differs(n, more) {
		t.Error("a change is not seen")
	}
}

func TestReadyCondition(t *testing.T) {
	bad := func(kind string) func(*Observed) {
		return func(o *Observed) {
			for _, c := range o.Runtime.Conditions {
				if c.Type == kind {
					c.Status, c.Reason, c.Message = false, "Why", "text"
				}
			}
		}
	}
	for want, o := range map[string]Observed{
		"container runtime is down: no answer":                                            observed(func(o *Observed) { o.Runtime = RuntimeState{Err: errors.New("no answer")} }),
		"container runtime network not ready: NetworkReady=false reason:Why message:text": observed(bad(runtimeapi.NetworkReady)),
		"[container runtime not ready: RuntimeReady=false reason:Why message:text, container runtime network not ready: NetworkReady=false reason:Why message:text]": observed(bad(runtimeapi.RuntimeReady), bad(runtimeapi.NetworkReady)),
		"missing node capacity for resources: pods": observed(func(o *Observed) { delete(o.Machine.Capacity, v1.ResourcePods) }),
	} {
		n := build(&v1.Node{}, o, now)
		c := n.Status.Conditions[3]
		if c.Status != v1.ConditionFalse || c.Reason != "KubeletNotReady" || c.Message != want {
			t.Errorf("%s %s %q, want %q", c.Status, c.Reason, c.Message, want)
		}
	}
}

func TestPressure(t *testing.T) {
	n := build(&v1.Node{}, observed(func(o *Observed) { o.Pressure = Pressure{Memory: true, Disk: true, PID: true} }), now)
	for i, want := range []string{"KubeletHasInsufficientMemory", "KubeletHasDiskPressure", "KubeletHasInsufficientPID"} {
		if c := n.Status.Conditions[i]; c.Status != v1.ConditionTrue || c.Reason != want {
			t.Errorf("%+v, want %s", c, want)
		}
	}
}

func TestMeasure(t *testing.T) {
	m, err := Measure(t.TempDir()+"/not/there/yet", 42)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		if q := m.Capacity[name]; q.IsZero() {
			t.Errorf("no %s", name)
		}
	}
	if pods := m.Capacity[v1.ResourcePods]; pods.Value() != 42 || m.Info.KernelVersion == "" || m.Info.BootID == "" || m.Info.OSImage == "" {
		t.Errorf("%+v", m)
	}
}
