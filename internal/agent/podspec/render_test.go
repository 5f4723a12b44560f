package podspec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func limits(cpuRequest, cpuLimit, memRequest, memLimit string) v1.ResourceRequirements {
	r := v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}
	for _, v := range []struct {
		list v1.ResourceList
		name v1.ResourceName
		q    string
	}{{r.Requests, v1.ResourceCPU, cpuRequest}, {r.Limits, v1.ResourceCPU, cpuLimit}, {r.Requests, v1.ResourceMemory, memRequest}, {r.Limits, v1.ResourceMemory, memLimit}} {
		if v.q != "" {
			v.list[v.name] = resource.MustParse(v.q)
		}
	}
	return r
}

func TestSharesAndQuota(t *testing.T) {
	for milli, want := range map[int64][2]int64{0: {2, 0}, 1: {2, 1000}, 5: {5, 1000}, 100: {102, 10000}, 500: {512, 50000}, 2000: {2048, 200000}, 1 << 40: {262144, 1 << 40 * 100}} {
		if got := [2]int64{Shares(milli), Quota(milli)}; got != want {
			t.Errorf("%dm: shares, quota = %v, want %v", milli, got, want)
		}
	}
}

func TestContainerResources(t *testing.T) {
	host := Host{MemoryCapacity: 1000 << 20, MinOOMScore: -1000}
	cases := map[string]struct {
		r    v1.ResourceRequirements
		want *runtimeapi.LinuxContainerResources
	}{
		"best effort": {limits("", "", "", ""), &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 1000}},
		"burstable": {limits("100m", "500m", "100Mi", "200Mi"),
			&runtimeapi.LinuxContainerResources{CpuShares: 102, CpuQuota: 50000, CpuPeriod: 100000, MemoryLimitInBytes: 200 << 20, OomScoreAdj: 900}},
		"guaranteed": {limits("500m", "500m", "100Mi", "100Mi"),
			&runtimeapi.LinuxContainerResources{CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000, MemoryLimitInBytes: 100 << 20, OomScoreAdj: -997}},
		"a limit stands in for the request": {limits("", "500m", "", ""),
			&runtimeapi.LinuxContainerResources{CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000, OomScoreAdj: 999}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			container := v1.Container{Name: "c", Resources: c.r}
			got := host.containerResources(testPod(container), &container)
			if got.String() != c.want.String() {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	host.MinOOMScore = 0
	container := v1.Container{Name: "c", Resources: limits("1", "1", "1Mi", "1Mi")}
	if got := host.containerResources(testPod(container), &container).OomScoreAdj; got != 0 {
		t.Errorf("without the right to lower it, the OOM score is %d", got)
	}
}

func TestCgroupLimits(t *testing.T) {
	both := func(a, b v1.ResourceRequirements) *v1.Pod {
		p := testPod(v1.Container{Name: "a", Resources: a})
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "b", Resources: b})
		return p
	}
	cases := map[string]struct {
		pod  *v1.Pod
		want PodLimits
	}{
		"all limited":  {both(limits("100m", "200m", "1Mi", "2Mi"), limits("100m", "300m", "1Mi", "3Mi")), PodLimits{Shares: 204, QuotaUS: 50000, Memory: 5 << 20}},
		"one is not":   {both(limits("100m", "200m", "", ""), limits("100m", "", "1Mi", "3Mi")), PodLimits{Shares: 204}},
		"best effort":  {both(limits("", "", "", ""), limits("", "", "", "")), PodLimits{Shares: 2}},
		"no cpu asked": {both(limits("", "", "1Mi", "1Mi"), limits("", "", "1Mi", "1Mi")), PodLimits{Shares: 2, Memory: 2 << 20}},
	}
	for name, c := range cases {
		if got := CgroupLimits(c.pod); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestPodCgroupNamesTheTierAndUID(t *testing.T) {
	host := Host{CgroupParent: "/mend-abc"}
	for want, r := range map[string]v1.ResourceRequirements{
		"/mend-abc/besteffort/podu": limits("", "", "", ""),
		"/mend-abc/burstable/podu":  limits("1", "", "", ""),
		"/mend-abc/podu":            limits("1", "1", "1Mi", "1Mi"),
	} {
		if got := host.PodCgroup(testPod(v1.Container{Name: "c", Resources: r})); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestDNS(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("# comment\nnameserver 9.9.9.9\nnameserver 8.8.8.8\nsearch old\nsearch lan. corp .\noptions ndots:1 timeout:2\noptions ndots:3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	host := Host{ResolvConf: conf, ClusterDNS: []string{"10.0.0.10"}, ClusterDomain: "cluster.local"}
	two := "2"
	cases := map[string]struct {
		change func(*v1.PodSpec)
		want   *runtimeapi.DNSConfig
	}{
		"cluster first": {func(*v1.PodSpec) {}, &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"},
			Searches: []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan", "corp"}, Options: []string{"ndots:5"}}},
		"the host's": {func(s *v1.PodSpec) { s.DNSPolicy = v1.DNSDefault }, &runtimeapi.DNSConfig{Servers: []string{"9.9.9.9", "8.8.8.8"},
			Searches: []string{"lan", "corp"}, Options: []string{"ndots:3", "timeout:2"}}},
		"on the host's network": {func(s *v1.PodSpec) { s.HostNetwork = true }, &runtimeapi.DNSConfig{Servers: []string{"9.9.9.9", "8.8.8.8"},
			Searches: []string{"lan", "corp"}, Options: []string{"ndots:3", "timeout:2"}}},
		"its own": {func(s *v1.PodSpec) {
			s.DNSPolicy = v1.DNSNone
			s.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.1"}, Searches: []string{"a"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "rotate"}}}
		}, &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: []string{"a"}, Options: []string{"ndots:2", "rotate"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod := testPod(v1.Container{Name: "c"})
			pod.Spec.DNSPolicy = v1.DNSClusterFirst
			c.change(&pod.Spec)
			got, warnings, err := host.dns(pod)
			if err != nil || len(warnings) != 0 {
				t.Fatal(err, warnings)
			}
			if got.String() != c.want.String() {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	pod := testPod(v1.Container{})
	pod.Spec.DNSPolicy = v1.DNSNone
	pod.Spec.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"}}
	got, warnings, err := host.dns(pod)
	if err != nil || len(got.Servers) != 3 || len(warnings) != 1 || warnings[0].Reason != "DNSConfigForming" {
		t.Errorf("four nameservers: %v, %v, %v", got, warnings, err)
	}
}

func TestHostnameAndHosts(t *testing.T) {
	host := Host{ClusterDomain: "cluster.local"}
	pod := testPod(v1.Container{})
	pod.Name = strings.Repeat("a", 62) + ".b"
	if name, _, err := host.Hostname(pod); err != nil || name != strings.Repeat("a", 62) {
		t.Errorf("long name: %q, %v", name, err)
	}
	pod.Spec.Hostname, pod.Spec.Subdomain = "h", "sub"
	name, domain, err := host.Hostname(pod)
	if err != nil || name != "h" || domain != "sub.ns.svc.cluster.local" {
		t.Errorf("%q, %q, %v", name, domain, err)
	}
	pod.Spec.HostAliases = []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"x", "y"}}}
	hosts, err := host.HostsFile(pod, []string{"10.1.1.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n", "10.1.1.1\th.sub.ns.svc.cluster.local\th\n", "\n# Entries added by HostAliases.\n1.2.3.4\tx\ty\n"} {
		if !strings.Contains(string(hosts), want) {
			t.Errorf("%q is not in\n%s", want, hosts)
		}
	}
	yes := true
	pod.Spec.SetHostnameAsFQDN = &yes
	if name, err := host.kernelHostname(pod); err != nil || name != "h.sub.ns.svc.cluster.local" {
		t.Errorf("FQDN: %q, %v", name, err)
	}
}

func TestSecurity(t *testing.T) {
	yes, no, zero, user := true, false, int64(0), int64(1000)
	c := v1.Container{Name: "c", SecurityContext: &v1.SecurityContext{
		Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}}, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes}}
	pod := testPod(c)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, FSGroup: &user, SupplementalGroups: []int64{7},
		SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}}
	got, err := Host{}.containerSecurity(pod, &c, Image{UID: &zero}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got.RunAsUser.GetValue() != 1000 || !got.NoNewPrivs || !got.ReadonlyRootfs || got.Privileged || len(got.MaskedPaths) == 0 ||
		got.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault || got.NamespaceOptions.Pid != runtimeapi.NamespaceMode_CONTAINER {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]int64{1000, 7}, got.SupplementalGroups); diff != "" {
		t.Error(diff)
	}
	if got.Capabilities.AddCapabilities[0] != "NET_ADMIN" || got.Capabilities.DropCapabilities[0] != "ALL" {
		t.Errorf("%+v", got.Capabilities)
	}
}

func TestNonRootIsChecked(t *testing.T) {
	yes, zero, user := true, int64(0), int64(1000)
	where := ` (pod: "p_ns(u)", container: c)`
	cases := map[string]struct {
		runAs *int64
		image Image
		want  string
	}{
		"root by the Pod":         {&zero, Image{UID: &user}, "container's runAsUser breaks non-root policy" + where},
		"root by the image":       {nil, Image{UID: &zero}, "container has runAsNonRoot and image will run as root" + where},
		"a name by the image":     {nil, Image{Username: "www"}, "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root" + where},
		"a number by the image":   {nil, Image{UID: &user}, ""},
		"the Pod over the image":  {&user, Image{UID: &zero}, ""},
		"the Pod over its image2": {&user, Image{Username: "www"}, ""},
	}
	for name, c := range cases {
		container := v1.Container{Name: "c", SecurityContext: &v1.SecurityContext{RunAsNonRoot: &yes, RunAsUser: c.runAs}}
		_, err := Host{}.containerSecurity(testPod(container), &container, c.image, "")
		if got := errText(err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestSandbox(t *testing.T) {
	host := Host{LogDir: "/logs", CgroupParent: "/mend-x", ClusterDomain: "cluster.local"}
	pod := testPod(v1.Container{Name: "c", Ports: []v1.ContainerPort{{ContainerPort: 80, HostPort: 8080, HostIP: "127.0.0.1", Protocol: v1.ProtocolTCP}}})
	pod.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net/ipv4/conf/eth0.1/x", Value: "1"}, {Name: "kernel.shm_rmid_forced", Value: "0"}}}
	got, _, err := host.Sandbox(pod, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got.Metadata.Attempt != 3 || got.Hostname != "p" || got.LogDirectory != "/logs/ns_p_u" || got.Linux.CgroupParent != "/mend-x/besteffort/podu" ||
		got.Labels["io.kubernetes.pod.uid"] != "u" || got.Labels["app"] != "x" {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff(map[string]string{"net.ipv4.conf.eth0/1.x": "1", "kernel.shm_rmid_forced": "0"}, got.Linux.Sysctls); diff != "" {
		t.Error(diff)
	}
	if p := got.PortMappings[0]; p.HostPort != 8080 || p.ContainerPort != 80 || p.HostIp != "127.0.0.1" {
		t.Errorf("port %+v", p)
	}
}

func TestAPodThatAsksForUsersOfItsOwnGetsNoSandboxWithTheHosts(t *testing.T) {
	pod := testPod(v1.Container{Name: "c"})
	hostUsers := false
	pod.Spec.HostUsers = &hostUsers
	_, _, err := Host{}.Sandbox(pod, 0)
	if err == nil || err.Error() != "can't set `spec.hostUsers: false`, runtime does not support user namespaces" {
		t.Error(err)
	}
	hostUsers = true
	if _, _, err := (Host{}).Sandbox(pod, 0); err != nil {
		t.Error(err)
	}
}

func TestSandboxNamespaces(t *testing.T) {
	host, pod := Host{}, testPod(v1.Container{Name: "c"})
	pod.Spec.HostPID = true
	got, _, err := host.Sandbox(pod, 0)
	if err != nil {
		t.Fatal(err)
	}
	if ns := got.Linux.SecurityContext.NamespaceOptions; ns.Pid != runtimeapi.NamespaceMode_NODE || ns.Network != runtimeapi.NamespaceMode_POD {
		t.Errorf("namespaces %+v", ns)
	}
	pod.Spec.HostNetwork = true
	if got, _, err = host.Sandbox(pod, 0); err != nil || got.Hostname != "" || got.Linux.SecurityContext.NamespaceOptions.Network != runtimeapi.NamespaceMode_NODE {
		t.Errorf("on the host's network: %+v, %v", got, err)
	}
}

func TestContainerCarriesWhatTheNextAgentNeeds(t *testing.T) {
	grace := int64(12)
	c := v1.Container{Name: "c", Image: "img:1", Command: []string{"$(X)"}, Args: []string{"a", "$(Y)"}, TerminationMessagePath: "/dev/termination-log",
		Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}}}}
	pod := testPod(c)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	got, err := Host{}.Container(ContainerInput{Pod: pod, Container: &c, Attempt: 2, Image: Image{Ref: "sha256:x"}, Env: []EnvVar{{"X", "run"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got.Metadata.Attempt != 2 || got.LogPath != "c/2.log" || got.Image.Image != "sha256:x" || got.Image.UserSpecifiedImage != "img:1" ||
		got.Command[0] != "run" || got.Args[1] != "$(Y)" || string(got.Envs[0].Value) != "run" {
		t.Errorf("%+v", got)
	}
	for name, want := range map[string]string{
		HashAnnotation: Hash(&c), RestartCountAnnotation: "2", TerminationGracePeriodAnnotation: "12",
		TerminationMessagePathAnnotation: "/dev/termination-log", PreStopAnnotation: `{"exec":{"command":["bye"]}}`,
	} {
		if got.Annotations[name] != want {
			t.Errorf("annotation %s: %q, want %q", name, got.Annotations[name], want)
		}
	}
}
