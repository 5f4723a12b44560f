package agent

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/agent/status"
)

func asks(cpu, memory string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	}
}

func holdsPort(ip string, port int32) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostIP: ip, HostPort: port, ContainerPort: port}}
	}
}

func TestRefuse(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "ssd"}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourcePods: resource.MustParse("3")}}}
	windows := func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Windows} }
	sysctl := func(name string, hostNetwork bool) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.HostNetwork = hostNetwork
			p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: name, Value: "1"}}}
		}
	}
	selects := func(value string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": value} }
	}
	cases := map[string]struct {
		pod    *v1.Pod
		others []*v1.Pod
		want   *status.Verdict
	}{
		"a Pod that fits":          {spec(asks("1", "1Gi")), []*v1.Pod{spec(asks("1", "0"))}, nil},
		"no CPU is left":           {spec(asks("1500m", "1Mi")), []*v1.Pod{spec(asks("600m", "1Mi"))}, &status.Verdict{Reason: "OutOfcpu", Message: "Node didn't have enough resource: cpu, requested: 1500, used: 600, capacity: 2000"}},
		"no memory is left":        {spec(asks("1", "2Gi")), nil, &status.Verdict{Reason: "OutOfmemory", Message: "Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824"}},
		"too many Pods":            {spec(), []*v1.Pod{spec(), spec(), spec()}, &status.Verdict{Reason: "OutOfpods", Message: "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"}},
		"another system":           {spec(windows), nil, &status.Verdict{Reason: "PodOSNotSupported", Message: "Failed to admit pod as the OS field doesn't match node OS"}},
		"a sysctl of its own":      {spec(sysctl("net/ipv4/tcp_syncookies", false)), nil, nil},
		"a sysctl of the node's":   {spec(sysctl("kernel.msgmax", false)), nil, &status.Verdict{Reason: "SysctlForbidden", Message: `forbidden sysctl: "kernel.msgmax" not allowlisted`}},
		"a sysctl of the host's":   {spec(sysctl("net.ipv4.tcp_syncookies", true)), nil, &status.Verdict{Reason: "SysctlForbidden", Message: `forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled`}},
		"the node's labels do":     {spec(selects("ssd")), nil, nil},
		"the node's labels do not": {spec(selects("hdd")), nil, &status.Verdict{Reason: "NodeAffinity", Message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"}},
		"the port is taken":        {spec(holdsPort("", 80)), []*v1.Pod{spec(holdsPort("127.0.0.1", 80))}, &status.Verdict{Reason: "NodePorts", Message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"}},
		"on another address":       {spec(holdsPort("127.0.0.2", 80)), []*v1.Pod{spec(holdsPort("127.0.0.1", 80))}, nil},
		"an unknown resource is the cluster's": {spec(func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{"example.com/x": resource.MustParse("9")}
		}), nil, nil},
	}
	for name, c := range cases {
		r := newRoom()
		for i, other := range c.others {
			other.UID = types.UID(fmt.Sprint(i))
			r.hold(other)
		}
		if diff := cmp.Diff(c.want, r.take(c.pod, node)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		// Whoever leaves makes room.
		for i := range c.others {
			r.leave(types.UID(fmt.Sprint(i)))
		}
		r.leave(c.pod.UID)
		if cpu := r.used[v1.ResourceCPU]; !cpu.IsZero() || len(r.held)+len(r.ports) != 0 {
			t.Errorf("%s: left behind %v", name, r)
		}
	}
}

func TestBackoff(t *testing.T) {
	var b Backoff
	end, now := epoch, epoch
	if !b.until(end).IsZero() {
		t.Error("the first restart waits")
	}
	var delays []string
	for range 8 {
		b = b.raised(end, now)
		delays = append(delays, b.until(now).Sub(now).String())
		end, now = now, now.Add(b.Delay)
	}
	if diff := cmp.Diff([]string{"10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s", "5m0s"}, delays); diff != "" {
		t.Errorf("delays (-want +got):\n%s", diff)
	}
	if late := b.Since.Add(10*maxBackoff/5 + 1); !b.until(late).IsZero() || b.raised(late, late).Delay != firstBackoff {
		t.Error("ten minutes are not forgiven")
	}
}
