package apiserver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"mend/internal/apiserver"
	"mend/internal/testkit"
)

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func TestPagesContinueAndExpireWithAFreshToken(t *testing.T) {
	t.Parallel()
	s := testkit.StartAPIServer(t, func(_ testing.TB, c *apiserver.Config) { c.CompactionInterval = 200 * time.Millisecond })
	ctx := testContext(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	for i := range 5 {
		must[*corev1.ConfigMap](t)(maps.Create(ctx, configMap(fmt.Sprint("c", i)), metav1.CreateOptions{}))
	}
	first := must[*corev1.ConfigMapList](t)(maps.List(ctx, metav1.ListOptions{Limit: 2}))
	if len(first.Items) != 2 || *first.RemainingItemCount != 3 {
		t.Fatalf("first page: %v", first)
	}
	second, err := maps.List(ctx, metav1.ListOptions{Limit: 10, Continue: first.Continue})
	if err != nil || len(second.Items) != 3 || second.Items[0].Name != "c2" || second.ResourceVersion != first.ResourceVersion {
		t.Fatalf("second page: %v, %v", second, err)
	}
	var expired error
	testkit.WaitFor(t, "the token to expire", func() error {
		// Compaction drops revisions that something newer has replaced.
		must[*corev1.ConfigMap](t)(maps.Patch(ctx, "c0", types.MergePatchType, fmt.Appendf(nil, `{"data":{"t":"%d"}}`, time.Now().UnixNano()), metav1.PatchOptions{}))
		if _, expired = maps.List(ctx, metav1.ListOptions{Limit: 2, Continue: first.Continue}); expired == nil {
			return errors.New("still good")
		}
		return nil
	})
	var status apierrors.APIStatus
	if !errors.As(expired, &status) || !apierrors.IsResourceExpired(expired) {
		t.Fatalf("got %v", expired)
	}
	fresh, err := maps.List(ctx, metav1.ListOptions{Limit: 2, Continue: status.Status().ListMeta.Continue})
	if err != nil || len(fresh.Items) != 2 || fresh.Items[0].Name != "c2" {
		t.Errorf("with the fresh token: %v, %v", fresh, err)
	}
}

func TestWatchesStartFromNowFromTheCacheAndWithBookmarks(t *testing.T) {
	t.Parallel()
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	must[*corev1.ConfigMap](t)(maps.Create(ctx, configMap("old"), metav1.CreateOptions{}))
	// A list as a watch: what there is, then a bookmark that says so.
	w := must[watch.Interface](t)(maps.Watch(ctx, metav1.ListOptions{
		SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}))
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != "old" {
		t.Fatalf("first: %v", e)
	}
	if e := <-w.ResultChan(); e.Type != watch.Bookmark || e.Object.(*corev1.ConfigMap).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Fatalf("then: %v", e)
	}
	must[*corev1.ConfigMap](t)(maps.Create(ctx, configMap("new"), metav1.CreateOptions{}))
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != "new" {
		t.Fatalf("live: %v", e)
	}
	ok(t, maps.Delete(ctx, "new", metav1.DeleteOptions{}))
	if e := <-w.ResultChan(); e.Type != watch.Deleted {
		t.Fatalf("deleted: %v", e)
	}
	if cached := must[*corev1.ConfigMapList](t)(maps.List(ctx, metav1.ListOptions{ResourceVersion: "0"})); len(cached.Items) != 1 {
		t.Errorf("from the cache: %v", cached)
	}
	err := s.Client.CoreV1().RESTClient().Get().RequestURI("/api/v1/namespaces/default/configmaps?resourceVersion=1000000&resourceVersionMatch=NotOlderThan").
		MaxRetries(0).Do(ctx).Error()
	if !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), "Too large resource version: 1000000, current: ") {
		t.Errorf("from the future: %v", err)
	}
}

func TestEventsAreOneStoreBehindTwoGroups(t *testing.T) {
	t.Parallel()
	s := testkit.StartAPIServer(t, func(_ testing.TB, c *apiserver.Config) { c.EventTTL = 2 * time.Second })
	ctx := testContext(t)
	_, err := s.Client.EventsV1().Events("default").Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1.abc"}, EventTime: metav1.NowMicro(), ReportingController: "mend-scheduler", ReportingInstance: "m",
		Action: "Scheduling", Reason: "FailedScheduling", Type: "Warning", Note: "0/1 nodes are available",
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-1"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Client.EventsV1().Events("default").Create(ctx, &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "eventTime: Required value") {
		t.Errorf("an event without a time: %v", err)
	}
	list, err := s.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=web-1,reason=FailedScheduling,involvedObject.kind=Pod,type=Warning"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Message != "0/1 nodes are available" || list.Items[0].ReportingController != "mend-scheduler" {
		t.Fatalf("in core: %v, %v", list, err)
	}
	testkit.WaitFor(t, "the event to expire", func() error {
		if _, err := s.Client.CoreV1().Events("default").Get(ctx, "web-1.abc", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there: %w", err)
		}
		return nil
	})
}

func TestFieldSelectorsBeyondNames(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	one, two := pod("one"), pod("two")
	two.Spec.NodeName, two.Spec.RestartPolicy = "n1", corev1.RestartPolicyNever
	for _, p := range []*corev1.Pod{one, two} {
		must[*corev1.Pod](t)(s.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}))
	}
	for selector, want := range map[string]string{
		"spec.nodeName=n1":                             "two",
		"spec.nodeName=":                               "one",
		"spec.restartPolicy=Never":                     "two",
		"status.phase!=Pending":                        "",
		"status.phase=Pending,metadata.name=one":       "one",
		"spec.serviceAccountName=default":              "one two",
		"metadata.namespace=default,spec.nodeName!=n1": "one",
		"spec.schedulerName=default-scheduler":         "one two",
		"spec.hostNetwork=true":                        "",
		"status.podIP=10.0.0.1":                        "",
	} {
		for _, version := range []string{"", "0"} {
			list := must[*corev1.PodList](t)(s.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: version}))
			var names []string
			for _, p := range list.Items {
				names = append(names, p.Name)
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("%s (resourceVersion %q): %q, want %q", selector, version, got, want)
			}
		}
	}
	_, err := s.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.color=red"})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "field label not supported: spec.color") {
		t.Errorf("an unknown field: %v", err)
	}
	for _, path := range []string{"/api/v1/nodes?fieldSelector=spec.unschedulable%3Dtrue", "/api/v1/secrets?fieldSelector=type%3DOpaque",
		"/api/v1/namespaces?fieldSelector=status.phase%3DActive", "/api/v1/services?fieldSelector=spec.type%3DClusterIP"} {
		if err := s.Client.CoreV1().RESTClient().Get().RequestURI(path).Do(ctx).Error(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestAWatchByNodeSeesAPodWhenItIsBound(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	podOn(t, s, "one", "")
	w := must[watch.Interface](t)(s.Client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n2"}))
	defer w.Stop()
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n2"}}
	ok(t, s.Client.CoreV1().Pods("default").Bind(ctx, binding, metav1.CreateOptions{}))
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.Pod).Name != "one" {
		t.Errorf("bound: %v", e)
	}
	ok(t, s.Client.CoreV1().Pods("default").Delete(ctx, "one", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))
	// A forced deletion is one write: nothing says before that it comes.
	if e := <-w.ResultChan(); e.Type != watch.Deleted {
		t.Errorf("deleted: %v", e)
	}
}

func TestStateSurvivesTheServer(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	if _, err := s.Client.CoreV1().Services("default").Create(ctx, service("web"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	second := testkit.StartAPIServer(t, func(_ testing.TB, c *apiserver.Config) { c.Etcd, c.StoreHealth = s.Store.Client(), nil })
	client, err := kubernetes.NewForConfig(second.ClientConfig("x"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again := service("again")
	again.Spec.ClusterIP = got.Spec.ClusterIP
	if _, err := client.CoreV1().Services("default").Create(ctx, again, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "provided IP is already allocated") {
		t.Errorf("the address is given away twice: %v", err)
	}
}
