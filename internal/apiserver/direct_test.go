package apiserver_test

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"mend/internal/testkit"
)

// TestADirectWatchShowsWhatAClientSees: the two must not be told apart by what they
// deliver, from the list they begin with to a deletion.
func TestADirectWatchShowsWhatAClientSees(t *testing.T) {
	t.Parallel()
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	must[*corev1.Pod](t)(pods.Create(ctx, pod("elsewhere"), metav1.CreateOptions{}))
	podOn(t, s, "old", "one")
	onOne := fields.OneTermEqualSelector("spec.nodeName", "one")
	options := metav1.ListOptions{SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}

	direct, ok := s.Server.ListWatch("pods", onOne).(cache.ListerWatcherWithContext)
	if !ok {
		t.Fatal("a direct watch cannot be ended by its context")
	}
	ours := must[watch.Interface](t)(direct.WatchWithContext(ctx, options))
	defer ours.Stop()
	options.FieldSelector = onOne.String()
	theirs := must[watch.Interface](t)(s.Client.CoreV1().Pods("").Watch(ctx, options))
	defer theirs.Stop()

	same := func(what string) {
		t.Helper()
		want, got := <-theirs.ResultChan(), <-ours.ResultChan()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-client +direct):\n%s", what, diff)
		}
	}
	same("the Pod that is there")
	same("the end of the list")
	podOn(t, s, "new", "one")
	same("a Pod bound to the node")
	must[*corev1.Pod](t)(pods.Patch(ctx, "new", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))
	same("a Pod that changed")
	if err := pods.Delete(ctx, "new", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	same("a Pod that is being deleted")
	same("a Pod that is gone")

	list := must[runtime.Object](t)(direct.ListWithContext(ctx, metav1.ListOptions{})).(*corev1.PodList)
	want := must[*corev1.PodList](t)(s.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: onOne.String()}))
	if diff := cmp.Diff(want.Items, list.Items); diff != "" || len(want.Items) != 1 {
		t.Errorf("lists (-client +direct):\n%s", diff)
	}
}

// TestWhatADirectWatchGivesIsTheCallersOwn: the watch cache goes on giving its
// object to others.
func TestWhatADirectWatchGivesIsTheCallersOwn(t *testing.T) {
	t.Parallel()
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	made := must[*corev1.Pod](t)(s.Client.CoreV1().Pods("default").Create(ctx, pod("web"), metav1.CreateOptions{}))
	direct := s.Server.ListWatch("pods", nil).(cache.ListerWatcherWithContext)
	for _, spoil := range []func() *corev1.Pod{
		func() *corev1.Pod {
			return &must[runtime.Object](t)(direct.ListWithContext(ctx, metav1.ListOptions{ResourceVersion: made.ResourceVersion})).(*corev1.PodList).Items[0]
		},
		func() *corev1.Pod {
			w := must[watch.Interface](t)(direct.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "0"}))
			defer w.Stop()
			return (<-w.ResultChan()).Object.(*corev1.Pod)
		},
	} {
		got := spoil()
		got.Spec.Containers[0].Image, got.Labels = "spoilt", map[string]string{"spoilt": "yes"}
		again := must[*corev1.Pod](t)(s.Client.CoreV1().Pods("default").Get(ctx, "web", metav1.GetOptions{ResourceVersion: made.ResourceVersion}))
		if diff := cmp.Diff(made.Spec, again.Spec); diff != "" {
			t.Errorf("the cache's Pod changed:\n%s", diff)
		}
	}
}

func TestWritesUnderWayAreCounted(t *testing.T) {
	t.Parallel()
	s := testkit.StartAPIServer(t)
	if got := s.Server.Writing(); got != 0 {
		t.Fatalf("%d writes under way at rest", got)
	}
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- post(s, "replicaset", reader) }()
	testkit.WaitFor(t, "the write to be counted", func() error {
		if s.Server.Writing() != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	writer.Close()
	<-done
	testkit.WaitFor(t, "the write to end", func() error {
		if s.Server.Writing() != 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// post sends a create whose body is still to come.
func post(s *testkit.APIServer, user string, body io.Reader) error {
	request, err := http.NewRequest(http.MethodPost, "http://in-process/api/v1/namespaces/default/pods", body)
	if err != nil {
		return err
	}
	response, err := s.Server.ClientConfig(user).Transport.RoundTrip(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
