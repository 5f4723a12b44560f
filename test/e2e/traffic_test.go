package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trafficManifest is a server that exits on SIGTERM without a thought for its clients.
const trafficManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: mend.local/web:1.0
        env: [{name: EXIT_ON_SIGTERM, value: "1"}, {name: ROUND, value: "0"}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 5}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

// trafficWorld is a cluster with a server under load from another network namespace.
type trafficWorld struct {
	*cluster
	net   *clientNet
	urls  []string // ClusterIP and node port
	dns   string   // of the cluster
	round int
}

const loadClients = 8

func newTrafficWorld(t *testing.T, flags ...string) *trafficWorld {
	t.Helper()
	needRoot(t)
	w := &trafficWorld{cluster: newCluster(t), net: newClientNet(t)}
	w.start(flags...)
	w.mustApply(trafficManifest)
	w.mustKubectl("rollout", "status", "deployment/web", "--timeout=120s")
	service, err := w.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.urls = []string{"http://" + net.JoinHostPort(service.Spec.ClusterIP, "80"),
		"http://" + net.JoinHostPort(strings.Split(clientHost, "/")[0], strconv.Itoa(int(service.Spec.Ports[0].NodePort)))}
	w.eventually("the cluster's DNS", func() string {
		dns, err := w.client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		w.dns = net.JoinHostPort(dns.Spec.ClusterIP, "53")
		return ""
	})
	return w
}

// test runs one case under load; what happens in it must not fail a request.
func (w *trafficWorld) test(t *testing.T, what string, during func(t *testing.T, l *load)) {
	t.Run(what, func(t *testing.T) {
		w.t = t
		l := w.net.load(loadClients, w.urls...)
		defer l.stop()
		during(t, l)
		l.mustServe(t, what)
	})
}

// roll makes a new revision and waits until it has replaced the old one.
func (w *trafficWorld) roll() {
	w.t.Helper()
	w.round++
	w.mustKubectl("set", "env", "deployment/web", "ROUND="+strconv.Itoa(w.round))
	w.mustKubectl("rollout", "status", "deployment/web", "--timeout=90s")
}

func (w *trafficWorld) strategy(replicas int, surge, unavailable string) {
	w.t.Helper()
	w.mustKubectl("patch", "deployment", "web", "-p", fmt.Sprintf(
		`{"spec":{"replicas":%d,"strategy":{"rollingUpdate":{"maxSurge":%s,"maxUnavailable":%s}}}}`, replicas, surge, unavailable))
	w.mustKubectl("rollout", "status", "deployment/web", "--timeout=90s")
}

func TestTraffic(t *testing.T) {
	port := freePort(t)
	w := newTrafficWorld(t, "--api-port", port)
	defer func() { w.t = t }()
	requests := size(t, 1500, 5000, 30000)
	for _, budget := range [][2]string{{"1", "1"}, {"1", "0"}, {`"25%"`, `"25%"`}} {
		w.test(t, fmt.Sprintf("rollouts of three with surge %s and unavailable %s", budget[0], budget[1]), func(t *testing.T, l *load) {
			w.strategy(3, budget[0], budget[1])
			for done := 0; done == 0 || l.count() < requests; done++ {
				w.roll()
			}
		})
	}
	w.test(t, "rollouts of the only Pod", func(t *testing.T, l *load) {
		w.strategy(1, "1", "0")
		for range size(t, 2, 10, 10) {
			w.roll()
		}
	})
	w.test(t, "scaling to ten and to two", func(t *testing.T, l *load) {
		for _, replicas := range []string{"3", "10", "2"} {
			w.mustKubectl("scale", "deployment/web", "--replicas="+replicas)
			w.mustKubectl("rollout", "status", "deployment/web", "--timeout=90s")
			w.eventually("its Pods", func() string {
				pods := w.pods(t, "app=web")
				return want(strconv.Itoa(len(pods)) == replicas, "%d Pods, want %s", len(pods), replicas)
			})
		}
	})
	w.test(t, "a Pod that is not ready for a while", func(t *testing.T, l *load) { w.unreadyForAWhile(t, l) })
	w.test(t, "mend killed and started again", func(t *testing.T, l *load) {
		asked := w.askNames(t)
		for range size(t, 1, 3, 10) {
			before := l.count()
			w.signal(w.mendPID(), unix.SIGKILL)
			w.eventually("requests while mend is down", func() string { return want(l.count() > before+100, "%d requests", l.count()-before) })
			w.start("--api-port", port)
		}
		asked(t)
	})
	t.Run("a request in flight on a Pod that is replaced", func(t *testing.T) { w.t = t; w.inFlight(t) })
	t.Run("a container killed", func(t *testing.T) { w.t = t; w.containerKilled(t) })
	w.test(t, "a node whose proxy never confirms", func(t *testing.T, l *load) { w.deadProxy(t) })
}

// TestTrafficUnconfirmed shows that the tests above can fail.
func TestTrafficUnconfirmed(t *testing.T) {
	w := newTrafficWorld(t, "--confirm-traffic=false")
	l := w.net.load(loadClients, w.urls...)
	defer l.stop()
	rounds := 0
	for ; rounds < 20; rounds++ {
		w.roll()
		l.mu.Lock()
		failed := len(l.failures)
		l.mu.Unlock()
		if failed > 0 {
			break
		}
	}
	failures := l.end()
	t.Logf("%d rollouts, %d requests answered, %d failed", rounds+1, l.total, len(failures))
	if len(failures) == 0 {
		t.Error("nothing failed: the load would not see a dropped request")
	}
}

// pods are the Pods with a label that are not being deleted.
func (w *trafficWorld) pods(t *testing.T, selector string) []corev1.Pod {
	t.Helper()
	list, err := w.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	var live []corev1.Pod
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			live = append(live, pod)
		}
	}
	return live
}

// tell gives one Pod an order.
func (w *trafficWorld) tell(t *testing.T, pod corev1.Pod, path string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: w.net.dial, DisableKeepAlives: true}, Timeout: requestLimit}
	answer, err := client.Post("http://"+net.JoinHostPort(pod.Status.PodIP, "8080")+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
}

// unreadyForAWhile: the Pod that fails its probe gets no new connection until it passes.
func (w *trafficWorld) unreadyForAWhile(t *testing.T, l *load) {
	pod := w.pods(t, "app=web")[0]
	w.tell(t, pod, "/healthz/fail")
	w.eventually("traffic to leave the Pod", func() string {
		before, all := l.by(pod.Name), l.count()
		for l.count() < all+200 {
			<-time.After(time.Millisecond)
		}
		// Kept connections may stay with it; new ones must not come.
		return want(l.by(pod.Name)-before == 0 || !w.fresh(t, pod.Name, 30), "it still answers")
	})
	if w.fresh(t, pod.Name, 200) {
		t.Errorf("Pod %s got a new connection while it was not ready", pod.Name)
	}
	w.tell(t, pod, "/healthz/ok")
	w.eventually("traffic to come back", func() string { return want(w.fresh(t, pod.Name, 30), "it gets no new connection") })
}

// fresh says whether one of n new connections leads to the Pod.
func (w *trafficWorld) fresh(t *testing.T, pod string, n int) bool {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: w.net.dial, DisableKeepAlives: true}, Timeout: requestLimit}
	for range n {
		got, err := get(client, w.urls[0])
		if err != nil {
			t.Fatal(err)
		}
		if got == pod {
			return true
		}
	}
	return false
}

// askNames asks the cluster's DNS until the returned function is called, which fails the
// test if a question had no answer.
func (w *trafficWorld) askNames(t *testing.T) func(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.net.dial(ctx, network, w.dns)
	}}
	var asking sync.WaitGroup
	var failed []error
	asked := 0
	asking.Go(func() {
		for ctx.Err() == nil {
			limited, cancel := context.WithTimeout(context.Background(), requestLimit)
			addresses, err := resolver.LookupHost(limited, "web.default.svc.cluster.local.")
			cancel()
			asked++
			if want := w.urls[0]; err != nil || len(addresses) != 1 || "http://"+net.JoinHostPort(addresses[0], "80") != want {
				failed = append(failed, fmt.Errorf("%v, %w", addresses, err))
			}
		}
	})
	return func(t *testing.T) {
		t.Helper()
		stop()
		asking.Wait()
		t.Logf("%d names asked, %d failed", asked, len(failed))
		if len(failed) > 0 {
			t.Errorf("%d of %d names failed, the first: %v", len(failed), asked, failed[0])
		}
	}
}

// inFlight: a request that its Pod still works on when it is replaced is answered.
func (w *trafficWorld) inFlight(t *testing.T) {
	w.strategy(1, "1", "0")
	var old string
	w.eventually("the Pods of before to be gone", func() string {
		list, err := w.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil || len(list.Items) != 1 {
			return fmt.Sprintf("%d Pods, %v", len(list.Items), err)
		}
		old = list.Items[0].Name
		return ""
	})
	takes := time.Duration(size(t, 4, 6, 20)) * time.Second
	answers := make(chan string, 1)
	client := &http.Client{Transport: &http.Transport{DialContext: w.net.dial}, Timeout: time.Minute}
	go func() {
		pod, err := get(client, fmt.Sprintf("%s/slow?ms=%d", w.urls[0], takes.Milliseconds()))
		answers <- fmt.Sprint(pod, err)
	}()
	w.roll() // it begins with a new Pod's start, long after the request has arrived
	select {
	case got := <-answers:
		if got != old+"<nil>" {
			t.Errorf("the request that was in flight: %s, want an answer of %s", got, old)
		}
	case <-time.After(stateLimit):
		t.Error("the request that was in flight was not answered")
	}
}

// containerPID is the process of a container, named as a Pod's status names it.
func (c *cluster) containerPID(id string) int {
	c.t.Helper()
	answer, err := c.runtime().ContainerStatus(context.Background(), strings.TrimPrefix(id, "containerd://"), true)
	if err != nil {
		c.t.Fatal(err)
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil || info.PID <= 1 {
		c.t.Fatalf("container %s: %q (%v)", id, answer.Info["info"], err)
	}
	return info.PID
}

// containerKilled: only requests in flight fail; new ones go elsewhere at once.
func (w *trafficWorld) containerKilled(t *testing.T) {
	w.strategy(3, "1", "0")
	l := w.net.load(loadClients, w.urls...)
	defer l.stop()
	pod := w.pods(t, "app=web")[0]
	w.eventually("requests at the Pod", func() string { return want(l.by(pod.Name) > 0, "none") })
	pid := w.containerPID(pod.Status.ContainerStatuses[0].ContainerID)
	killed := time.Now()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.eventually("the Pod to run again", func() string {
		again, err := w.client.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		status := again.Status.ContainerStatuses[0]
		return want(status.RestartCount == 1 && status.Ready, "restarted %d times, ready %v", status.RestartCount, status.Ready)
	})
	failures := l.end()
	last := time.Duration(0)
	for _, f := range failures {
		last = max(last, f.at.Sub(killed))
	}
	t.Logf("%d requests failed of %d, the last %v after the kill", len(failures), l.total, last.Round(time.Millisecond))
	if last > 2*time.Second {
		t.Errorf("a request failed %v after the kill: %v", last, failures[len(failures)-1].err)
	}
}

// deadProxy: a node that is there and never confirms holds a rollout up only for its
// bounds.
func (w *trafficWorld) deadProxy(t *testing.T) {
	leases := w.client.CoordinationV1().Leases("kube-system")
	ghost := "ghost"
	_, err := leases.Create(t.Context(), &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "mend-proxy-ghost", Labels: map[string]string{"mend.local/proxy": ""},
			Annotations: map[string]string{"mend.local/programmed-endpointslices": "1"}},
		Spec: coordination.LeaseSpec{HolderIdentity: &ghost},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := leases.Delete(context.Background(), "mend-proxy-ghost", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	w.roll()
	t.Logf("the rollout took %v", time.Since(began).Round(time.Millisecond))
}
