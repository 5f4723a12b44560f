package apiserver_test

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"mend/internal/testkit"
)

func TestPrivilegedPodsAreTakenAndRuntimeClassesAreUnknown(t *testing.T) {
	s := testkit.StartAPIServer(t)
	p := pod("privileged")
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	must[*corev1.Pod](t)(s.Client.CoreV1().Pods("default").Create(testContext(t), p, metav1.CreateOptions{}))

	p = pod("sandboxed")
	p.Spec.RuntimeClassName = ptr.To("gvisor")
	_, err := s.Client.CoreV1().Pods("default").Create(testContext(t), p, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || err.Error() != `pods "sandboxed" is forbidden: pod rejected: RuntimeClass "gvisor" not found` {
		t.Errorf("RuntimeClass: %v", err)
	}
}

func TestANewPodHasUpstreamsDefaults(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	p := pod("a")
	p.Status.Phase = corev1.PodRunning // nobody sets this at creation
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	got := must[*corev1.Pod](t)(s.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}))
	if got.Status.Phase != corev1.PodPending || got.Status.QOSClass != corev1.PodQOSBurstable || got.Generation != 1 {
		t.Errorf("status %+v, generation %d", got.Status, got.Generation)
	}
	spec := got.Spec
	defaults := fmt.Sprintln(spec.ServiceAccountName, spec.DeprecatedServiceAccount, spec.RestartPolicy, spec.DNSPolicy,
		*spec.TerminationGracePeriodSeconds, spec.SchedulerName, spec.Containers[0].ImagePullPolicy, len(spec.Volumes))
	if defaults != "default default Always ClusterFirst 30 default-scheduler IfNotPresent 0\n" {
		t.Errorf("spec %s", defaults)
	}
	var tolerations []string
	for _, t := range spec.Tolerations {
		tolerations = append(tolerations, fmt.Sprint(t.Key, " ", t.Operator, " ", t.Effect, " ", *t.TolerationSeconds))
	}
	if got := strings.Join(tolerations, "; "); got != "node.kubernetes.io/not-ready Exists NoExecute 300; node.kubernetes.io/unreachable Exists NoExecute 300" {
		t.Errorf("tolerations: %s", got)
	}
	everything := pod("tolerant")
	everything.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	if got, err := s.Client.CoreV1().Pods("default").Create(ctx, everything, metav1.CreateOptions{}); err != nil || len(got.Spec.Tolerations) != 1 {
		t.Errorf("a Pod that tolerates everything: %v, %v", got.Spec.Tolerations, err)
	}
}

func TestAPodsAccountMustExistUnlessItIsTheDefault(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	named := pod("named")
	named.Spec.ServiceAccountName = "robot"
	_, err := s.Client.CoreV1().Pods("default").Create(ctx, named, metav1.CreateOptions{})
	want := `pods "named" is forbidden: error looking up service account default/robot: serviceaccount "robot" not found`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("an account that does not exist: %v", err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}}
	must[*corev1.ServiceAccount](t)(s.Client.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}))
	if got, err := s.Client.CoreV1().Pods("default").Create(ctx, named, metav1.CreateOptions{}); err != nil || len(got.Spec.ImagePullSecrets) != 1 {
		t.Errorf("an account that exists: %v, %v", got, err)
	}
}

func TestPrioritiesComeFromTheClassesThatAlwaysExist(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	create := func(name, class string, number *int32) (*corev1.Pod, error) {
		p := pod(name)
		p.Spec.PriorityClassName, p.Spec.Priority = class, number
		return s.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	}
	if p, err := create("a", "", nil); err != nil || *p.Spec.Priority != 0 || *p.Spec.PreemptionPolicy != corev1.PreemptLowerPriority {
		t.Errorf("no class: %v, %v", p, err)
	}
	if p, err := create("b", "system-node-critical", nil); err != nil || *p.Spec.Priority != 2000001000 {
		t.Errorf("a system class: %v, %v", p, err)
	}
	_, err := create("c", "gold", nil)
	if !apierrors.IsForbidden(err) || err.Error() != `pods "c" is forbidden: no PriorityClass with name gold was found` {
		t.Errorf("an unknown class: %v", err)
	}
	if _, err := create("d", "", ptr.To(int32(7))); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the integer value of priority (7) must not be provided in pod spec") {
		t.Errorf("a number: %v", err)
	}
	// The text that a Pod was created from changes nothing when it is sent again.
	again := pod("a")
	again.Spec.ServiceAccountName = "default"
	if p, err := s.Client.CoreV1().Pods("default").Update(ctx, again, metav1.UpdateOptions{}); err != nil || p.Generation != 1 || len(p.Spec.Tolerations) != 2 {
		t.Errorf("updated: %v, %v", p, err)
	}
}

func TestGeneratedNamesHaveFiveRandomCharacters(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	p := pod("")
	p.GenerateName = "web-6799fc88d8-"
	got, err := s.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	if err != nil || len(got.Name) != len(p.GenerateName)+5 {
		t.Errorf("%v, %v", got, err)
	}
	_, err = s.Client.CoreV1().Pods("default").Create(ctx, pod(""), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "name or generateName is required") {
		t.Errorf("without a name: %v", err)
	}
}

// podOn creates a Pod on a node; gone says whether there is no such Pod.
func podOn(t *testing.T, s *testkit.APIServer, name, node string) *corev1.Pod {
	t.Helper()
	p := pod(name)
	p.Spec.NodeName = node
	return must[*corev1.Pod](t)(s.Client.CoreV1().Pods("default").Create(testContext(t), p, metav1.CreateOptions{}))
}

func gone(t *testing.T, s *testkit.APIServer, name string) bool {
	_, err := s.Client.CoreV1().Pods("default").Get(testContext(t), name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func TestPodsThatNothingRunsForAreDeletedAtOnce(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	podOn(t, s, "unscheduled", "")
	if err := pods.Delete(ctx, "unscheduled", metav1.DeleteOptions{}); err != nil || !gone(t, s, "unscheduled") {
		t.Errorf("a Pod without a node stays: %v", err)
	}
	podOn(t, s, "forced", "n1")
	if err := pods.Delete(ctx, "forced", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil || !gone(t, s, "forced") {
		t.Errorf("a forced deletion: %v", err)
	}
	podOn(t, s, "done", "n1")
	must[*corev1.Pod](t)(pods.Patch(ctx, "done", types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"))
	if err := pods.Delete(ctx, "done", metav1.DeleteOptions{}); err != nil || !gone(t, s, "done") {
		t.Errorf("a Pod that is over stays: %v", err)
	}
}

func TestARunningPodIsDeletedInGrace(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	podOn(t, s, "a", "n1")
	before := time.Now().Truncate(time.Second)
	ok(t, pods.Delete(ctx, "a", metav1.DeleteOptions{}))
	p := must[*corev1.Pod](t)(pods.Get(ctx, "a", metav1.GetOptions{}))
	if p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 || p.Generation != 2 || p.DeletionTimestamp.Time.Before(before.Add(30*time.Second)) {
		t.Fatalf("marked: %+v", p.ObjectMeta)
	}
	// Only a shorter grace period is taken.
	for _, c := range []struct{ asked, want int64 }{{60, 30}, {5, 5}, {10, 5}} {
		ok(t, pods.Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &c.asked}))
		if p = must[*corev1.Pod](t)(pods.Get(ctx, "a", metav1.GetOptions{})); *p.DeletionGracePeriodSeconds != c.want {
			t.Errorf("asked for %d: %+v", c.asked, p.ObjectMeta)
		}
	}
	// The agent confirms with grace 0 for exactly this Pod.
	confirm := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0)), Preconditions: &metav1.Preconditions{UID: &p.UID}}
	if err := pods.Delete(ctx, "a", confirm); err != nil || !gone(t, s, "a") {
		t.Errorf("confirmed: %v", err)
	}
}

// TestPodsAreDeletedAsTheGenericRegistryDoes deletes one Pod by its name, which may take one
// step, and one like it by a selector, which is the generic registry's code.
func TestPodsAreDeletedAsTheGenericRegistryDoes(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	type change = func(name string) // after the Pod is there
	graceful := func(seconds int64) change {
		return func(name string) { ok(t, pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &seconds})) }
	}
	ended := func(name string) {
		must[*corev1.Pod](t)(pods.Patch(ctx, name, types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status"))
	}
	hold := func(name string) {
		must[*corev1.Pod](t)(pods.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`), metav1.PatchOptions{}))
	}
	states := map[string]struct {
		node    string
		changes []change
	}{
		"running":             {node: "n1"},
		"unscheduled":         {},
		"over":                {"n1", []change{ended}},
		"held":                {"n1", []change{hold}},
		"held, unscheduled":   {"", []change{hold}},
		"being deleted":       {"n1", []change{graceful(30)}},
		"held, being deleted": {"n1", []change{hold, graceful(0)}},
		"deleted, then over":  {"n1", []change{graceful(30), ended}},
	}
	orphan, background, foreground := metav1.DeletePropagationOrphan, metav1.DeletePropagationBackground, metav1.DeletePropagationForeground
	asked := map[string]metav1.DeleteOptions{
		"nothing":     {},
		"grace 0":     {GracePeriodSeconds: ptr.To(int64(0))},
		"grace 5":     {GracePeriodSeconds: ptr.To(int64(5))},
		"grace 60":    {GracePeriodSeconds: ptr.To(int64(60))},
		"grace -1":    {GracePeriodSeconds: ptr.To(int64(-1))},
		"orphan":      {GracePeriodSeconds: ptr.To(int64(0)), PropagationPolicy: &orphan},
		"background":  {GracePeriodSeconds: ptr.To(int64(0)), PropagationPolicy: &background},
		"foreground":  {GracePeriodSeconds: ptr.To(int64(0)), PropagationPolicy: &foreground},
		"dry run":     {GracePeriodSeconds: ptr.To(int64(0)), DryRun: []string{metav1.DryRunAll}},
		"another UID": {GracePeriodSeconds: ptr.To(int64(0)), Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("other"))}},
		"another version": {GracePeriodSeconds: ptr.To(int64(0)),
			Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("1")}},
	}
	// left is what a client sees of the Pod and of the error, but for what is by chance.
	left := func(name string, err error) string {
		text := "no error"
		if err != nil {
			text = strings.ReplaceAll(regexp.MustCompile(`record \([^)]*\)`).ReplaceAllString(err.Error(), "record"), name, "NAME")
		}
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return text + ", gone"
		}
		ok(t, err)
		in := "never"
		if p.DeletionTimestamp != nil {
			in = time.Until(p.DeletionTimestamp.Time).Round(10 * time.Second).String()
		}
		return fmt.Sprintf("%s, generation %d, finalizers %v, deleted in %s with %v", text, p.Generation, p.Finalizers, in, ptr.Deref(p.DeletionGracePeriodSeconds, -1))
	}
	n := 0
	for state, from := range states {
		for what, options := range asked {
			n++
			one, other := fmt.Sprintf("one-%d", n), fmt.Sprintf("other-%d", n)
			for _, name := range []string{one, other} {
				podOn(t, s, name, from.node)
				for _, change := range from.changes {
					change(name)
				}
			}
			got := left(one, pods.Delete(ctx, one, *options.DeepCopy()))
			want := left(other, pods.DeleteCollection(ctx, *options.DeepCopy(), metav1.ListOptions{FieldSelector: "metadata.name=" + other}))
			if got != want {
				t.Errorf("%s, %s:\n got %s\nwant %s", state, what, got, want)
			}
		}
	}
}

// TestAFinalizerThatComesMeanwhileHoldsThePod deletes Pods while finalizers are set: none
// of those that got one may go.
func TestAFinalizerThatComesMeanwhileHoldsThePod(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	for i := range 50 {
		name := fmt.Sprintf("p%d", i)
		podOn(t, s, name, "n1")
		var deleting sync.WaitGroup
		deleting.Go(func() {
			if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
				t.Errorf("delete: %v", err)
			}
		})
		_, err := pods.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`), metav1.PatchOptions{})
		deleting.Wait()
		if err == nil && gone(t, s, name) {
			t.Fatalf("%s is gone although it got a finalizer", name)
		}
	}
}

func TestBindingGivesAPodItsNodeOnce(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	created, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "other", Annotations: map[string]string{"why": "fits"}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "n1"},
	}
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "UID") {
		t.Errorf("another UID: %v", err)
	}
	binding.UID = created.UID
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || got.Spec.NodeName != "n1" || got.Annotations["why"] != "fits" || len(got.Status.Conditions) != 1 ||
		got.Status.Conditions[0].Type != corev1.PodScheduled || got.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("bound: %+v, %v", got, err)
	}
	err = pods.Bind(ctx, binding, metav1.CreateOptions{})
	want := `Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "n1"`
	if !apierrors.IsConflict(err) || err.Error() != want {
		t.Errorf("a second time: %v", err)
	}
	binding.Name = "missing"
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Pod that does not exist: %v", err)
	}
}

func TestEvictionSaysWhyAndDeletes(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	p := pod("a")
	p.Spec.NodeName = "n1"
	if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "a"}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(3))}}); err != nil {
		t.Fatal(err)
	}
	got, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || *got.DeletionGracePeriodSeconds != 3 || len(got.Status.Conditions) != 1 ||
		got.Status.Conditions[0].Type != corev1.DisruptionTarget || got.Status.Conditions[0].Reason != "EvictionByEvictionAPI" {
		t.Errorf("evicted: %+v, %v", got, err)
	}
	if err := pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "missing"}}); !apierrors.IsNotFound(err) {
		t.Errorf("a Pod that does not exist: %v", err)
	}
}

func TestWhatAPodMayChange(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	created, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	moved := created.DeepCopy()
	moved.Spec.NodeName = "n1"
	_, err = pods.Update(ctx, moved, metav1.UpdateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`") {
		t.Errorf("changing the node: %v", err)
	}
	status := created.DeepCopy()
	status.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "X", Name: "x", UID: "x"}}
	status.Status.QOSClass, status.Status.Phase = "", corev1.PodRunning
	got, err := pods.UpdateStatus(ctx, status, metav1.UpdateOptions{})
	if err != nil || len(got.OwnerReferences) != 0 || got.Status.QOSClass != corev1.PodQOSBestEffort || got.Status.Phase != corev1.PodRunning || got.Generation != 1 {
		t.Errorf("a status update: %+v, %v", got, err)
	}
	got.Status.Phase = ""
	if got, err = pods.Update(ctx, got, metav1.UpdateOptions{}); err != nil || got.Status.Phase != corev1.PodRunning {
		t.Errorf("an update clears the status: %+v, %v", got, err)
	}
}

func TestDeploymentRulesAreUpstreams(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	deployments := s.Client.AppsV1().Deployments("default")
	bad := deployment("web", 1)
	bad.Spec.Template.Labels = map[string]string{"app": "other"}
	_, err := deployments.Create(ctx, bad, metav1.CreateOptions{})
	want := "Deployment.apps \"web\" is invalid: spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template `labels`"
	if !apierrors.IsInvalid(err) || err.Error() != want {
		t.Errorf("a selector that does not match: %v", err)
	}
	bad = deployment("web", -1)
	if _, err := deployments.Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.replicas: Invalid value: -1: must be greater than or equal to 0") {
		t.Errorf("a negative count: %v", err)
	}
}

func TestWhatADeploymentMayChangeAndWhatCountsAsAGeneration(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	deployments := s.Client.AppsV1().Deployments("default")
	d := must[*appsv1.Deployment](t)(deployments.Create(ctx, deployment("web", 1), metav1.CreateOptions{}))
	moved := d.DeepCopy()
	moved.Spec.Selector.MatchLabels["extra"], moved.Spec.Template.Labels["extra"] = "1", "1"
	if _, err := deployments.Update(ctx, moved, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "field is immutable") {
		t.Errorf("changing the selector: %v", err)
	}
	d.Annotations = map[string]string{"kubernetes.io/change-cause": "x"}
	if d = must[*appsv1.Deployment](t)(deployments.Update(ctx, d, metav1.UpdateOptions{})); d.Generation != 2 {
		t.Errorf("an annotation: generation %d", d.Generation)
	}
	d.Labels["new"] = "label"
	if d = must[*appsv1.Deployment](t)(deployments.Update(ctx, d, metav1.UpdateOptions{})); d.Generation != 2 {
		t.Errorf("a label: generation %d", d.Generation)
	}
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, TerminatingReplicas: ptr.To(int32(2))}
	d.Labels["status"], *d.Spec.Replicas = "ignored", 9
	d = must[*appsv1.Deployment](t)(deployments.UpdateStatus(ctx, d, metav1.UpdateOptions{}))
	if d.Generation != 2 || *d.Spec.Replicas != 1 || d.Labels["status"] != "" || *d.Status.TerminatingReplicas != 2 {
		t.Errorf("a status update: %+v", d)
	}
}

func TestNamespacesGateWhatIsCreatedInThem(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	namespaces := s.Client.CoreV1().Namespaces()
	_, err := s.Client.CoreV1().Pods("nowhere").Create(ctx, pod("a"), metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) || err.Error() != `namespaces "nowhere" not found` {
		t.Errorf("no such namespace: %v", err)
	}
	err = namespaces.Delete(ctx, "default", metav1.DeleteOptions{})
	if !apierrors.IsForbidden(err) || err.Error() != `namespaces "default" is forbidden: this namespace may not be deleted` {
		t.Errorf("deleting default: %v", err)
	}
}

func TestANamespaceIsDeletedInTwoSteps(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	namespaces := s.Client.CoreV1().Namespaces()
	n := must[*corev1.Namespace](t)(namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}))
	if n.Status.Phase != corev1.NamespaceActive || n.Labels["kubernetes.io/metadata.name"] != "team" || fmt.Sprint(n.Spec.Finalizers) != "[kubernetes]" {
		t.Fatalf("created: %+v", n)
	}
	must[*corev1.Pod](t)(s.Client.CoreV1().Pods("team").Create(ctx, pod("a"), metav1.CreateOptions{}))
	ok(t, namespaces.Delete(ctx, "team", metav1.DeleteOptions{}))
	_, err := s.Client.CoreV1().Pods("team").Create(ctx, pod("b"), metav1.CreateOptions{})
	want := `pods "b" is forbidden: unable to create new content in namespace team because it is being terminated`
	if !apierrors.IsForbidden(err) || err.Error() != want || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("terminating: %v", err)
	}
	if n = must[*corev1.Namespace](t)(namespaces.Get(ctx, "team", metav1.GetOptions{})); n.Status.Phase != corev1.NamespaceTerminating || n.DeletionTimestamp == nil {
		t.Errorf("phase: %+v", n)
	}
	// Writing the status of what is being emptied does not end it.
	n.Status.Conditions = []corev1.NamespaceCondition{{Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionTrue, Reason: "SomeResourcesRemain"}}
	must[*corev1.Namespace](t)(namespaces.UpdateStatus(ctx, n, metav1.UpdateOptions{}))
	n = must[*corev1.Namespace](t)(namespaces.Patch(ctx, "team", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))
	n.Spec.Finalizers = nil
	must[*corev1.Namespace](t)(namespaces.Finalize(ctx, n, metav1.UpdateOptions{}))
	if _, err := namespaces.Get(ctx, "team", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("finalized: %v", err)
	}
}

func TestNodesKeepStatusAndSpecApart(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	nodes := s.Client.CoreV1().Nodes()
	n, err := nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}},
	}, metav1.CreateOptions{})
	if err != nil || n.Status.Capacity.Cpu().String() != "2" {
		t.Fatalf("a node registers with its status: %+v, %v", n, err)
	}
	patch := `{"spec":{"unschedulable":true},"status":{"conditions":[{"type":"Ready","status":"True"}],"capacity":{"example.com/dongle":"4"}}}`
	if n, err = nodes.Patch(ctx, "n1", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil || n.Spec.Unschedulable || len(n.Status.Capacity) != 2 {
		t.Errorf("status: %+v, %v", n, err)
	}
	if n, err = nodes.Patch(ctx, "n1", types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":true},"status":null}`), metav1.PatchOptions{}); err != nil || !n.Spec.Unschedulable || len(n.Status.Conditions) != 1 {
		t.Errorf("spec: %+v, %v", n, err)
	}
}

func TestLeasesNeedTheirVersion(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	leases := s.Client.CoordinationV1().Leases("kube-node-lease")
	l, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.ResourceVersion = ""
	if _, err := leases.Update(ctx, l, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.resourceVersion: Invalid value: 0: must be specified for an update") {
		t.Errorf("got %v", err)
	}
}
