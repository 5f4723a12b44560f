package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/network/families"
)

// servicesManifest has one Service of each kind for two servers, and a Pod that is never
// ready.
const servicesManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: web
        image: mend.local/web:1.0
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1, timeoutSeconds: 5}
---
apiVersion: v1
kind: Pod
metadata: {name: unready, labels: {app: unready}}
spec:
  terminationGracePeriodSeconds: 2
  containers: [{name: web, image: "mend.local/web:1.0", readinessProbe: {exec: {command: ["false"]}}}]
---
apiVersion: v1
kind: Service
metadata: {name: plain}
spec:
  selector: {app: web}
  ports: [{name: named, port: 80, targetPort: http}, {name: number, port: 81, targetPort: 8080}, {name: nowhere, port: 82, targetPort: other}]
---
apiVersion: v1
kind: Service
metadata: {name: node}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 18089, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {externalIPs: [198.51.100.77], selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec: {sessionAffinity: ClientIP, selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: early}
spec: {publishNotReadyAddresses: true, selector: {app: unready}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: late}
spec: {selector: {app: unready}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: plain.default.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: manual}
spec: {ports: [{port: 80}]}
`

// familiesManifest is for machines with IPv6.
const familiesManifest = `
apiVersion: v1
kind: Service
metadata: {name: dual}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec: {type: NodePort, ipFamilies: [IPv6], selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: balanced-six}
spec: {type: LoadBalancer, ipFamilies: [IPv6], selector: {app: web}, ports: [{port: 18091, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless-six}
spec: {clusterIP: None, ipFamilies: [IPv6], selector: {app: web}, ports: [{port: 8080}]}
`

const manualSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: manual-1, labels: {kubernetes.io/service-name: manual}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [%q]}]
`

// refused is what stands for the answer of a Service that leads nowhere.
const refused = "refused"

// servicesWorld has places to ask from, all of which reach a Service.
type servicesWorld struct {
	*cluster
	net    *clientNet
	apart  string // a Pod that is behind no Service but early
	server string // one that is behind most Services, and so may reach itself
}

// wants says who is to answer on which address, once the cluster is asked where they are.
func (w *servicesWorld) wants(t *testing.T) map[string]string {
	t.Helper()
	list, err := w.client.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{}
	add := func(ip string, port int, want string) {
		wants["http://"+net.JoinHostPort(ip, strconv.Itoa(port))] = want
	}
	for _, s := range list.Items {
		ip, ports := s.Spec.ClusterIP, s.Spec.Ports
		switch s.Name {
		case "plain":
			add(ip, 80, "web-")
			add(ip, 81, "web-")
			add(ip, 82, refused)
		case "node":
			add(ip, 80, "web-")
			add(addressOf(clientHost), int(ports[0].NodePort), "web-")
		case "dual", "six":
			for _, ip := range s.Spec.ClusterIPs {
				add(ip, 80, "web-")
				add(ip, 81, refused)
			}
			add(addressOf(clientHost6), int(ports[0].NodePort), "web-")
			if s.Name == "dual" {
				add(addressOf(clientHost), int(ports[0].NodePort), "web-")
			}
		case "balanced-six":
			add(ip, 18091, "web-")
			if ingress := s.Status.LoadBalancer.Ingress; len(ingress) != 1 {
				wants["http://balanced-six"] = fmt.Sprintf("one address, not %v", ingress)
			}
		case "balanced":
			for _, at := range s.Status.LoadBalancer.Ingress {
				add(at.IP, 18089, "web-")
				add(at.IP, int(ports[0].NodePort), "web-")
			}
		case "outside":
			add(ip, 80, "web-")
			add("198.51.100.77", 80, "web-")
		case "sticky", "manual":
			add(ip, 80, "web-")
		case "early":
			add(ip, 80, "unready")
		case "late":
			add(ip, 80, refused)
		}
	}
	return wants
}

func addressOf(prefix string) string { return strings.Split(prefix, "/")[0] }

// answers asks every address from one place, and says what is not as it should be.
func (w *servicesWorld) answers(place string, wants map[string]string) string {
	var urls []string
	for url := range wants {
		urls = append(urls, url)
	}
	var wrong []string
	for i, got := range w.ask(place, urls) {
		if want := wants[urls[i]]; !strings.HasPrefix(got, want) {
			wrong = append(wrong, fmt.Sprintf("%s: %s, want %s", urls[i], got, want))
		}
	}
	return strings.Join(wrong, "\n")
}

// ask returns the names of the Pods that answered.
func (w *servicesWorld) ask(place string, urls []string) []string {
	w.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	switch place {
	case "another network":
		transport.DialContext = w.net.dial
	case "the node":
	default:
		return w.askFrom(place, urls)
	}
	client, got := &http.Client{Transport: transport, Timeout: requestLimit}, []string(nil)
	for _, url := range urls {
		pod, err := get(client, url)
		if err != nil && strings.Contains(err.Error(), "connection refused") {
			pod = refused
		} else if err != nil {
			pod = err.Error()
		}
		got = append(got, pod)
	}
	return got
}

// askFrom asks from a Pod, in one command.
func (w *servicesWorld) askFrom(pod string, urls []string) []string {
	w.t.Helper()
	var script strings.Builder
	for _, url := range urls {
		fmt.Fprintf(&script, "curl -s -m 5 %s || echo on refused\n", url)
	}
	got := w.kubectl("exec", pod, "--", "sh", "-c", script.String())
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if len(lines) != len(urls) {
		return slices.Repeat([]string{"no answer: " + got.out + got.err}, len(urls))
	}
	for i, line := range lines {
		_, lines[i], _ = strings.Cut(line, "on ")
	}
	return lines
}

// names are asked from a Pod, as programs do: through its resolv.conf.
func (w *servicesWorld) names() string {
	wants := map[string]string{"http://nosuch": refused}
	for _, name := range []string{"plain", "plain.default", "plain.default.svc", "plain.default.svc.cluster.local.", "headless:8080", "alias"} {
		wants["http://"+name] = "web-"
	}
	if families.HasIPv6() { // of these there are AAAA records only
		wants["http://six"], wants["http://headless-six:8080"] = "web-", "web-"
	}
	return w.answers(w.apart, wants)
}

func (w *servicesWorld) everywhere(t *testing.T) {
	t.Helper()
	for _, place := range []string{"the node", "another network", w.apart, w.server} {
		w.eventually("Services from "+place, func() string { return w.answers(place, w.wants(t)) })
	}
	w.eventually("names", w.names)
}

// dnsPID is the process that answers the cluster's names.
func (w *servicesWorld) dnsPID() int {
	w.t.Helper()
	status := w.run("status", "--data-dir", w.data()).out
	found := regexp.MustCompile(`cluster DNS +pid (\d+)`).FindStringSubmatch(status)
	if found == nil {
		return 0
	}
	pid, err := strconv.Atoi(found[1])
	if err != nil {
		w.t.Fatal(err)
	}
	return pid
}

func TestServices(t *testing.T) {
	needRoot(t)
	var id string
	t.Cleanup(func() { nothingIsLeft(t, id) }) // after the purge
	w := &servicesWorld{cluster: newCluster(t), net: newClientNet(t), apart: "unready"}
	w.start()
	text, err := os.ReadFile(filepath.Join(w.data(), "instance"))
	if err != nil {
		t.Fatal(err)
	}
	id = strings.TrimSpace(string(text))
	w.mustApply(servicesManifest)
	if families.HasIPv6() {
		w.mustApply(familiesManifest)
	}
	w.mustKubectl("rollout", "status", "deployment/web", "--timeout=90s")
	one := strings.Fields(w.mustKubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name} {.items[0].status.podIP}"))
	w.server = one[0]
	w.mustApply(fmt.Sprintf(manualSlice, one[1]))

	w.families(t, one[0])
	w.everywhere(t)
	w.affinity(t)
	w.healthCheck(t)
	w.api(t)
	t.Run("the DNS program is killed", func(t *testing.T) { w.t = t; w.dnsKilled(t) })
	t.Run("mend goes down and comes up again", func(t *testing.T) { w.t = t; w.restarted(t) })
	w.t = t
	dns := w.dnsPID() // the purge has to end what nobody looks after any more
	w.signal(w.mendPID(), unix.SIGKILL)
	w.signal(dns, unix.SIGKILL)
}

// families: a Pod has an address of each, IPv4 first, out of its node's ranges; the default
// range of Services has both too.
func (w *servicesWorld) families(t *testing.T, pod string) {
	t.Helper()
	want := []bool{true} // by address: is it IPv4
	if families.HasIPv6() {
		want = append(want, false)
	}
	node, err := w.client.CoreV1().Nodes().Get(t.Context(), w.mustKubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	have, err := w.client.CoreV1().Pods("default").Get(t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cidr, err := w.client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(have.Status.PodIPs) != len(want) || len(node.Spec.PodCIDRs) != len(want) || len(cidr.Spec.CIDRs) != len(want) {
		t.Fatalf("%d families: Pod %v, node %v, Services %v", len(want), have.Status.PodIPs, node.Spec.PodCIDRs, cidr.Spec.CIDRs)
	}
	for i := range want {
		address, pods, services := netip.MustParseAddr(have.Status.PodIPs[i].IP), netip.MustParsePrefix(node.Spec.PodCIDRs[i]), netip.MustParsePrefix(cidr.Spec.CIDRs[i])
		if address.Is4() != want[i] || !pods.Contains(address) || services.Addr().Is4() != want[i] || pods.Overlaps(services) {
			t.Errorf("family %d: Pod %v, node %v, Services %v", i, address, pods, services)
		}
	}
}

// affinity: a client stays with its server, however often it connects.
func (w *servicesWorld) affinity(t *testing.T) {
	t.Helper()
	url := "http://" + w.mustKubectl("get", "service", "sticky", "-o", "jsonpath={.spec.clusterIP}")
	answers := w.ask("another network", slices.Repeat([]string{url}, 20))
	if servers := slices.Compact(slices.Sorted(slices.Values(answers))); len(servers) != 1 || !strings.HasPrefix(servers[0], "web-") {
		t.Errorf("session affinity: answers of %v, want one server", servers)
	}
}

// healthCheck: load balancers are told how many endpoints the node has.
func (w *servicesWorld) healthCheck(t *testing.T) {
	t.Helper()
	port := w.mustKubectl("get", "service", "balanced", "-o", "jsonpath={.spec.healthCheckNodePort}")
	client := &http.Client{Transport: &http.Transport{DialContext: w.net.dial, DisableKeepAlives: true}, Timeout: requestLimit}
	w.eventually("the health check", func() string {
		answer, err := client.Get("http://" + net.JoinHostPort(addressOf(clientHost), port))
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return err.Error()
		}
		return want(answer.StatusCode == http.StatusOK && strings.Contains(string(text), `"localEndpoints": 2`), "%s: %s", answer.Status, text)
	})
}

// api: what a Pod finds in kube-root-ca.crt vouches for kubernetes.default.
func (w *servicesWorld) api(t *testing.T) {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(w.mustKubectl("get", "configmap", "kube-root-ca.crt", "-o", `jsonpath={.data.ca\.crt}`))) {
		t.Fatal("no certificate in kube-root-ca.crt")
	}
	ip := w.mustKubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
	for _, name := range []string{"kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", ip} {
		client := &http.Client{Timeout: requestLimit, Transport: &http.Transport{DialContext: w.net.dial, DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12}}}
		answer, err := client.Get("https://" + ip + "/healthz")
		if err != nil {
			t.Errorf("the API as %s: %v", name, err)
			continue
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("the API as %s: %s", name, answer.Status)
		}
	}
}

// dnsKilled: the program that answers names comes back, and what was deleted too.
func (w *servicesWorld) dnsKilled(t *testing.T) {
	before := w.dnsPID()
	w.signal(before, unix.SIGKILL)
	w.eventually("another DNS program", func() string {
		now := w.dnsPID()
		return want(now != 0 && now != before, "pid %d, before %d", now, before)
	})
	w.eventually("names", w.names)
	w.mustKubectl("delete", "service", "kube-dns", "-n", "kube-system")
	w.eventually("another DNS Service", func() string {
		got := w.kubectl("get", "service", "kube-dns", "-n", "kube-system")
		return want(got.code == 0, "%s", got.err)
	})
	w.eventually("names", w.names)
}

// restarted: Services keep addresses and ports, and lead to where their Pods are now.
func (w *servicesWorld) restarted(t *testing.T) {
	addresses := func() string {
		return w.mustKubectl("get", "services", "-A", "-o", "jsonpath={range .items[*]}{.metadata.name} {.spec.clusterIPs} {.spec.ports[*].nodePort}{'\\n'}{end}")
	}
	before := addresses()
	if got := w.run("down", "--data-dir", w.data()); got.code != 0 {
		t.Fatalf("mend down: %s%s", got.out, got.err)
	}
	w.start()
	if after := addresses(); after != before {
		t.Errorf("Services before:\n%s\nafter:\n%s", before, after)
	}
	w.mustKubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/unready", "--timeout=60s")
	ip := ""
	w.eventually("the server's new address", func() string {
		ip = w.mustKubectl("get", "pod", w.server, "-o", "jsonpath={.status.podIP}")
		return want(ip != "", "none")
	})
	w.mustApply(fmt.Sprintf(manualSlice, ip))
	w.everywhere(t)
}

// nothingIsLeft looks for what carried an instance's Services.
func nothingIsLeft(t *testing.T, id string) {
	t.Helper()
	if id == "" {
		return // it never ran
	}
	kernel, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := kernel.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if strings.Contains(table.Name, id) {
			t.Errorf("the table %s is left", table.Name)
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if strings.Contains(link.Attrs().Name, id) {
			t.Errorf("the interface %s is left", link.Attrs().Name)
		}
	}
	if n := countProcesses("/run/mend/" + id + "/"); n > 0 {
		t.Errorf("%d processes are left", n)
	}
	if _, err := os.Stat("/run/mend/" + id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("/run/mend/%s is left: %v", id, err)
	}
}
