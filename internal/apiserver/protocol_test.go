package apiserver_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"mend/internal/testkit"
)

// The tests below are about what every kind has from the generic code.

func TestVersionHasNumbersAndCanBeParsed(t *testing.T) {
	s := testkit.StartAPIServer(t)
	v, err := s.Client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if v.Major != "1" || v.Minor != "37" || !strings.HasPrefix(v.GitVersion, "v1.37.") || strings.Contains(v.GitCommit, "$") {
		t.Errorf("version: %+v", v)
	}
}

func TestDiscoveryNamesEveryKindWithItsShortNames(t *testing.T) {
	s := testkit.StartAPIServer(t)
	groups, lists, err := s.Client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range groups {
		names = append(names, g.PreferredVersion.GroupVersion)
	}
	if got := strings.Join(names, " "); got != "v1 apps/v1 authentication.k8s.io/v1 authorization.k8s.io/v1 coordination.k8s.io/v1 discovery.k8s.io/v1 events.k8s.io/v1 networking.k8s.io/v1" {
		t.Errorf("groups: %s", got)
	}
	found := map[string]metav1.APIResource{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			found[list.GroupVersion+" "+r.Name] = r
		}
	}
	for name, want := range map[string]string{
		"v1 pods":                    "Pod pod [po] [all] [create delete deletecollection get list patch update watch]",
		"v1 services":                "Service service [svc] [all] [create delete deletecollection get list patch update watch]",
		"v1 namespaces":              "Namespace namespace [ns] [] [create delete get list patch update watch]",
		"v1 nodes":                   "Node node [no] [] [create delete deletecollection get list patch update watch]",
		"v1 configmaps":              "ConfigMap configmap [cm] [] [create delete deletecollection get list patch update watch]",
		"v1 serviceaccounts":         "ServiceAccount serviceaccount [sa] [] [create delete deletecollection get list patch update watch]",
		"v1 endpoints":               "Endpoints endpoints [ep] [] [create delete deletecollection get list patch update watch]",
		"v1 events":                  "Event event [ev] [] [create delete deletecollection get list patch update watch]",
		"events.k8s.io/v1 events":    "Event event [ev] [] [create delete deletecollection get list patch update watch]",
		"apps/v1 deployments":        "Deployment deployment [deploy] [all] [create delete deletecollection get list patch update watch]",
		"apps/v1 replicasets":        "ReplicaSet replicaset [rs] [all] [create delete deletecollection get list patch update watch]",
		"apps/v1 deployments/scale":  "Scale deployment [] [] [get patch update]",
		"apps/v1 deployments/status": "Deployment deployment [] [] [get patch update]",
		"v1 namespaces/finalize":     "Namespace namespace [] [] [update]",
		"v1 pods/binding":            "Binding pod [] [] [create]",
		"v1 pods/eviction":           "Eviction pod [] [] [create]",
		"v1 pods/exec":               "PodExecOptions pod [] [] [create get]",
		"v1 pods/log":                "Pod pod [] [] [get]",
		"v1 pods/proxy":              "PodProxyOptions pod [] [] [create delete get patch update]",
		"v1 bindings":                "Binding binding [] [] [create]",
		"authentication.k8s.io/v1 selfsubjectreviews": "SelfSubjectReview selfsubjectreview [] [] [create]",
		"networking.k8s.io/v1 ipaddresses":            "IPAddress ipaddress [ip] [] [create delete deletecollection get list patch update watch]",
		"networking.k8s.io/v1 servicecidrs":           "ServiceCIDR servicecidr [] [] [create delete deletecollection get list patch update watch]",
		"networking.k8s.io/v1 servicecidrs/status":    "ServiceCIDR servicecidr [] [] [get patch update]",
		"discovery.k8s.io/v1 endpointslices":          "EndpointSlice endpointslice [] [] [create delete deletecollection get list patch update watch]",
		"coordination.k8s.io/v1 leases":               "Lease lease [] [] [create delete deletecollection get list patch update watch]",
	} {
		r := found[name]
		if got := fmt.Sprintf("%s %s %v %v %v", r.Kind, r.SingularName, r.ShortNames, r.Categories, r.Verbs); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestOpenAPIExplainsAField(t *testing.T) {
	s := testkit.StartAPIServer(t)
	v2, err := s.Client.Discovery().OpenAPISchema()
	if err != nil || len(v2.Definitions.AdditionalProperties) < 100 {
		t.Fatalf("v2: %v", err)
	}
	paths, err := s.Client.Discovery().OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	text, err := paths["apis/apps/v1"].Schema("application/json")
	if err != nil {
		t.Fatal(err)
	}
	var v3 struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Description string }
			}
		}
	}
	if err := json.Unmarshal(text, &v3); err != nil {
		t.Fatal(err)
	}
	if got := v3.Components.Schemas["io.k8s.api.apps.v1.DeploymentSpec"].Properties["replicas"].Description; !strings.HasPrefix(got, "Number of desired pods.") {
		t.Errorf("description of replicas: %q", got)
	}
}

func TestTablesHaveUpstreamsColumns(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	if _, err := s.Client.AppsV1().Deployments("default").Create(ctx, deployment("web", 3), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.CoreV1().Pods("default").Create(ctx, pod("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]string{
		"/apis/apps/v1/namespaces/default/deployments": {"Name Ready Up-to-date Available Age Containers Images Selector", "web 0/3 0 0"},
		"/api/v1/namespaces/default/pods":              {"Name Ready Status Restarts Age IP Node Nominated Node Readiness Gates", "a 0/1 Pending 0"},
		"/api/v1/namespaces/default/pods/a":            {"Name Ready Status Restarts Age IP Node Nominated Node Readiness Gates", "a 0/1 Pending 0"},
	} {
		text, err := s.Client.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx).Raw()
		if err != nil {
			t.Fatal(err)
		}
		var table metav1.Table
		if err := json.Unmarshal(text, &table); err != nil {
			t.Fatal(err)
		}
		var columns, cells []string
		for _, c := range table.ColumnDefinitions {
			columns = append(columns, c.Name)
		}
		for _, c := range table.Rows[0].Cells {
			cells = append(cells, fmt.Sprint(c))
		}
		if got := strings.Join(columns, " "); got != want[0] {
			t.Errorf("%s: columns %s", path, got)
		}
		if got := strings.Join(cells, " "); !strings.HasPrefix(got, want[1]) {
			t.Errorf("%s: cells %s", path, got)
		}
	}
}

func TestStrictFieldValidationNamesTheField(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	post := func(validation, body string) error {
		return s.Client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").
			Param("fieldValidation", validation).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
	}
	const typo = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s"},"spec":{"containers":[{"name":"c","image":"i","imagePullPolcy":"Never"}]}}`
	err := post("Strict", fmt.Sprintf(typo, "a"))
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `strict decoding error: unknown field "spec.containers[0].imagePullPolcy"`) {
		t.Errorf("an unknown field: %v", err)
	}
	if err := post("Ignore", fmt.Sprintf(typo, "b")); err != nil {
		t.Errorf("ignored: %v", err)
	}
	err = post("Strict", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c"},"spec":{"containers":[{"name":"c","image":"i"}],"activeDeadlineSeconds":"soon"}}`)
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "activeDeadlineSeconds") {
		t.Errorf("a wrong type: %v", err)
	}
	err = post("Strict", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"d"},"spec":{"containers":[]}}`)
	if !apierrors.IsInvalid(err) || err.Error() != `Pod "d" is invalid: spec.containers: Required value` {
		t.Errorf("no containers: %v", err)
	}
	err = post("Strict", `{"apiVersion":"v1","kind":"Pod","metadata":{}`)
	if !apierrors.IsBadRequest(err) {
		t.Errorf("malformed: %v", err)
	}
	if err := post("Strict", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"e","annotations":{"a":"`+strings.Repeat("x", 4<<20)+`"}}}`); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("a huge object: %v", err)
	}
}

func TestServerSideApplyOwnsFieldsAndReportsConflicts(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	apply := func(manager, value string, force bool) (*corev1.ConfigMap, error) {
		return maps.Apply(ctx, corev1apply.ConfigMap("c", "default").WithData(map[string]string{"k": value}),
			metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	if _, err := apply("a", "1", false); err != nil {
		t.Fatal(err)
	}
	_, err := apply("b", "2", false)
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "a": .data.k`) {
		t.Errorf("no conflict: %v", err)
	}
	got, err := apply("b", "2", true)
	if err != nil || got.Data["k"] != "2" || len(got.ManagedFields) != 1 || got.ManagedFields[0].Manager != "b" {
		t.Errorf("forced: %v, %v", got, err)
	}
	// An apply that changes nothing writes nothing.
	again, err := apply("b", "2", false)
	if err != nil || again.ResourceVersion != got.ResourceVersion {
		t.Errorf("a second time: %v, %v", again, err)
	}
}

func TestAScaleUpdateKeepsOwnershipOfReplicas(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	const web = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	deployments := s.Client.AppsV1().Deployments("default")
	must[*appsv1.Deployment](t)(deployments.Patch(ctx, "web", types.ApplyPatchType, []byte(web), metav1.PatchOptions{FieldManager: "applier"}))
	scale := must[*autoscalingv1.Scale](t)(deployments.GetScale(ctx, "web", metav1.GetOptions{}))
	if scale.Spec.Replicas != 3 || scale.Status.Selector != "app=web" {
		t.Fatalf("scale: %v", scale)
	}
	scale.Spec.Replicas = 5
	if scale = must[*autoscalingv1.Scale](t)(deployments.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{FieldManager: "scaler"})); scale.Spec.Replicas != 5 {
		t.Fatalf("scaled: %v", scale)
	}
	got := must[*appsv1.Deployment](t)(deployments.Get(ctx, "web", metav1.GetOptions{}))
	if *got.Spec.Replicas != 5 || got.Generation != 2 {
		t.Fatalf("deployment: %v", got)
	}
	owner := ""
	for _, m := range got.ManagedFields {
		if strings.Contains(string(m.FieldsV1.Raw), "f:replicas") {
			owner += m.Manager + ":" + m.APIVersion + ":" + m.Subresource
		}
	}
	if owner != "scaler:apps/v1:scale" {
		t.Errorf("replicas are owned by %q", owner)
	}
	_, err := deployments.Patch(ctx, "web", types.ApplyPatchType, []byte(web), metav1.PatchOptions{FieldManager: "applier"})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "scaler" with subresource "scale" using apps/v1: .spec.replicas`) {
		t.Errorf("applying over it: %v", err)
	}
	scale.Spec.Replicas = -1
	if _, err := deployments.UpdateScale(ctx, "web", scale, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.replicas: Invalid value: -1") {
		t.Errorf("a negative count: %v", err)
	}
}

func TestStrategicMergePatchMergesListsByKey(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	pods := s.Client.CoreV1().Pods("default")
	if _, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`
	if _, err := pods.Patch(ctx, "a", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	patch = `{"status":{"conditions":[{"type":"ContainersReady","status":"True"},{"type":"Ready","status":"True"}]},"spec":{"nodeName":"ignored"}}`
	got, err := pods.Patch(ctx, "a", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil || len(got.Status.Conditions) != 2 || got.Spec.NodeName != "" {
		t.Fatalf("status: %v, %v", got, err)
	}
	if got, err = pods.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"web","image":"mend.local/web:2.0"}]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got.Spec.Containers[0].Image != "mend.local/web:2.0" || got.Spec.Containers[0].TerminationMessagePath == "" || got.Generation != 2 {
		t.Errorf("spec: %v, generation %d", got.Spec.Containers, got.Generation)
	}
	if _, err = pods.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/name","value":"b"}]`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a JSON patch whose test fails: %v", err)
	}
}

func TestDryRunDoesEverythingButWrite(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	dry := []string{metav1.DryRunAll}
	got, err := s.Client.CoreV1().Services("default").Create(ctx, service("web"), metav1.CreateOptions{DryRun: dry})
	if err != nil || got.Spec.ClusterIP == "" || got.UID == "" {
		t.Fatalf("create: %v, %v", got, err)
	}
	if _, err := s.Client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it exists: %v", err)
	}
	if _, err := s.Client.CoreV1().Pods("default").Create(ctx, pod("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.CoreV1().Pods("default").Delete(ctx, "a", metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.CoreV1().Namespaces().Delete(ctx, "kube-node-lease", metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Client.CoreV1().Namespaces().Get(ctx, "kube-node-lease", metav1.GetOptions{}); err != nil || n.Status.Phase != corev1.NamespaceActive {
		t.Errorf("namespace: %v, %v", n, err)
	}
	if _, err := s.Client.CoreV1().Pods("default").Get(ctx, "a", metav1.GetOptions{}); err != nil {
		t.Errorf("it is gone: %v", err)
	}
}

func TestUpdatesConflictAndPreconditionsHold(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	first, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed := first.DeepCopy()
	changed.Data = map[string]string{"k": "v"}
	if changed, err = maps.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = maps.Update(ctx, first, metav1.UpdateOptions{})
	want := `Operation cannot be fulfilled on configmaps "c": the object has been modified; please apply your changes to the latest version and try again`
	if !apierrors.IsConflict(err) || err.Error() != want {
		t.Errorf("a stale update: %v", err)
	}
	err = maps.Delete(ctx, "c", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("other"))}})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "the UID in the precondition (other) does not match the UID in record") {
		t.Errorf("another UID: %v", err)
	}
	err = maps.Delete(ctx, "c", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &first.ResourceVersion}})
	if !apierrors.IsConflict(err) {
		t.Errorf("another version: %v", err)
	}
	if err = maps.Delete(ctx, "c", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &changed.UID, ResourceVersion: &changed.ResourceVersion}}); err != nil {
		t.Errorf("with both right: %v", err)
	}
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", ResourceVersion: "1"}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "resourceVersion should not be set on objects to be created") {
		t.Errorf("creating with a version: %v", err)
	}
	if _, err = maps.Get(ctx, "c", metav1.GetOptions{}); err == nil || err.Error() != `configmaps "c" not found` {
		t.Errorf("not found: %v", err)
	}
}

func TestFinalizersKeepAnObjectUntilTheyAreGone(t *testing.T) {
	s := testkit.StartAPIServer(t)
	ctx := testContext(t)
	deployments := s.Client.AppsV1().Deployments("default")
	d := deployment("web", 1)
	d.Finalizers = []string{"example.com/wait"}
	if _, err := deployments.Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := deployments.Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	got, err := deployments.Get(ctx, "web", metav1.GetOptions{})
	if err != nil || got.DeletionTimestamp == nil || got.Generation != 2 || fmt.Sprint(got.Finalizers) != "[example.com/wait foregroundDeletion]" {
		t.Fatalf("marked: %v, %v", got.ObjectMeta, err)
	}
	if _, err := deployments.Patch(ctx, "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/new"]}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("adding a finalizer while deleting: %v", err)
	}
	if _, err := deployments.Patch(ctx, "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := deployments.Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("still there: %v", err)
	}
}
