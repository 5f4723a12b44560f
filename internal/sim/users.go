package sim

import (
	"fmt"
	"maps"
	"strings"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// badImage never becomes ready.
const badImage = "web:bad"

// action is one thing that a user may do; it says false when there is nothing to
// do it to.
type action struct {
	weight int
	do     func(*world) bool
}

// userActions with disruptive ones only where the seed's profile has them.
func (w *world) userActions() []action {
	calm := []action{
		{10, (*world).applyDeployment}, {20, (*world).scale}, {30, (*world).roll}, {10, (*world).undo},
		{8, (*world).pause}, {6, (*world).changeLimits}, {3, (*world).annotate},
		{4, (*world).addNode}, {3, (*world).cordon},
	}
	if w.profile.silence {
		calm = append(calm, action{10, (*world).goSilent})
	}
	if w.profile.namespaces {
		calm = append(calm, namespaceActions...)
	}
	calm = append(calm, w.trafficActions()...)
	if !w.profile.losses {
		return calm
	}
	if w.profile.namespaces {
		calm = append(calm, action{6, (*world).deleteNamespace})
	}
	return append(calm,
		action{6, (*world).deleteDeployment}, action{10, (*world).deletePod}, action{3, (*world).barePod},
		action{3, (*world).relabelPod}, action{3, (*world).stealPod}, action{3, (*world).replacePod},
		action{3, (*world).deleteReplicaSet}, action{4, (*world).deleteNode})
}

// trafficActions are about Services and what belongs to them.
func (w *world) trafficActions() []action {
	var all []action
	if w.profile.services {
		all = append(all, serviceActions...)
	}
	if w.profile.balancers {
		all = append(all, balancerActions...)
	}
	if w.profile.mirrors {
		all = append(all, mirrorActions...)
	}
	if w.profile.addresses {
		all = append(all, addressActions...)
	}
	return all
}

// isBusy says whether more loops than usual look after Services. There users do more
// about those, else there would be few at once.
func (p profile) isBusy() bool { return p.balancers || p.mirrors || p.addresses }

// userActs does one thing that a user could do.
func (w *world) userActs() {
	if w.profile.isBusy() && w.rng.IntN(2) == 0 {
		w.doOneOf(w.trafficActions())
		return
	}
	w.doOneOf(w.userActions())
}

func (w *world) doOneOf(actions []action) {
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	n := w.rng.IntN(total)
	for _, a := range actions {
		if n -= a.weight; n < 0 {
			a.do(w)
			return
		}
	}
}

// pick chooses one of the objects that fit; false if none does.
func pick[T object](w *world, res kindOf[T], fits func(T) bool) (T, bool) {
	var all []T
	for _, o := range listOf[T](w.api, res.res) {
		if fits(o) {
			all = append(all, o)
		}
	}
	if len(all) == 0 {
		var none T
		return none, false
	}
	return all[w.rng.IntN(len(all))], true
}

// kindOf ties a resource to its type.
type kindOf[T object] struct{ res resource }

var (
	aDeployment = kindOf[*apps.Deployment]{deployments}
	aReplicaSet = kindOf[*apps.ReplicaSet]{replicaSets}
	aPod        = kindOf[*v1.Pod]{pods}
	aNode       = kindOf[*v1.Node]{nodes}
)

func undeleted[T object](o T) bool { return o.GetDeletionTimestamp() == nil }

func template(app string, image string) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName,
			RestartPolicy: v1.RestartPolicyAlways,
			Containers: []v1.Container{{Name: "web", Image: image, Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: *quantity.NewMilliQuantity(200, quantity.DecimalSI)},
			}}},
		},
	}
}

func (w *world) image() string {
	if w.rng.IntN(6) == 0 {
		return badImage
	}
	return fmt.Sprintf("web:%d", w.rng.IntN(4))
}

func (w *world) limit() *intstr.IntOrString {
	if w.rng.IntN(2) == 0 {
		return ptr.To(intstr.FromString([]string{"0%", "25%", "50%", "100%"}[w.rng.IntN(4)]))
	}
	return ptr.To(intstr.FromInt32(w.rng.Int32N(4)))
}

func (w *world) strategy() apps.DeploymentStrategy {
	if w.rng.IntN(8) == 0 {
		return apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType}
	}
	s := &apps.RollingUpdateDeployment{MaxSurge: w.limit(), MaxUnavailable: w.limit()}
	if scaled(s.MaxSurge, 100, true) == 0 && scaled(s.MaxUnavailable, 100, false) == 0 {
		s.MaxSurge = ptr.To(intstr.FromInt32(1)) // validation admits no two zeroes
	}
	return apps.DeploymentStrategy{Type: apps.RollingUpdateDeploymentStrategyType, RollingUpdate: s}
}

func (w *world) size() int32 { return []int32{0, 1, 2, 3, 4, 5, 7, 10}[w.rng.IntN(8)] }

func (w *world) applyDeployment() bool {
	d := w.newDeployment()
	if _, err := w.api.create(deployments, d); err != nil {
		return false
	}
	w.note("user creates Deployment %s: %d Pods of %s, %s", keyOf(d), *d.Spec.Replicas, imageOf(d.Spec.Template), strategyText(d))
	return true
}

func (w *world) newDeployment() *apps.Deployment {
	name := []string{"a", "b"}[w.rng.IntN(2)]
	return &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespaceFor(name), Name: name},
		Spec: apps.DeploymentSpec{
			Replicas: ptr.To(w.size()), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: template(name, w.image()), Strategy: w.strategy(),
			MinReadySeconds:      []int32{0, 0, 0, 5}[w.rng.IntN(4)],
			RevisionHistoryLimit: ptr.To(w.rng.Int32N(4)), ProgressDeadlineSeconds: ptr.To[int32](600),
		},
	}
}

func imageOf(t v1.PodTemplateSpec) string { return t.Spec.Containers[0].Image }

func strategyText(d *apps.Deployment) string {
	r := d.Spec.Strategy.RollingUpdate
	if r == nil {
		return "Recreate"
	}
	return fmt.Sprintf("surge %s, unavailable %s", r.MaxSurge, r.MaxUnavailable)
}

func (w *world) editDeployment(what string, edit func(*apps.Deployment)) bool {
	d, ok := pick(w, aDeployment, undeleted)
	if ok {
		change(w.api, deployments, d, false, edit)
		now := w.api.objects[deployments][keyOf(d)].(*apps.Deployment)
		w.note("user %s Deployment %s: %d Pods of %s, %s, paused=%v", what, d.Name, *now.Spec.Replicas,
			imageOf(now.Spec.Template), strategyText(now), now.Spec.Paused)
	}
	return ok
}

func (w *world) scale() bool {
	size := w.size()
	return w.editDeployment("scales", func(d *apps.Deployment) { d.Spec.Replicas = &size })
}

func (w *world) roll() bool {
	image := w.image()
	return w.editDeployment("rolls", func(d *apps.Deployment) { d.Spec.Template = template(d.Name, image) })
}

func (w *world) pause() bool {
	return w.editDeployment("pauses or resumes", func(d *apps.Deployment) { d.Spec.Paused = !d.Spec.Paused })
}

func (w *world) changeLimits() bool {
	s := w.strategy()
	return w.editDeployment("changes the strategy of", func(d *apps.Deployment) { d.Spec.Strategy = s })
}

func (w *world) annotate() bool {
	cause := fmt.Sprint("cause ", w.rng.IntN(3))
	return w.editDeployment("annotates", func(d *apps.Deployment) {
		d.Annotations = maps.Clone(d.Annotations)
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, "kubernetes.io/change-cause", cause)
	})
}

// undo does what kubectl rollout undo does: the template of an old ReplicaSet,
// and its annotations but for those that are about itself.
func (w *world) undo() bool {
	rs, ok := pick(w, aReplicaSet, func(rs *apps.ReplicaSet) bool { return undeleted(rs) && w.deploymentOf(rs) != nil })
	if !ok || w.deploymentOf(rs).DeletionTimestamp != nil || w.deploymentOf(rs).Spec.Paused {
		return false
	}
	d := w.deploymentOf(rs)
	change(w.api, deployments, d, false, func(d *apps.Deployment) {
		d.Spec.Template = *rs.Spec.Template.DeepCopy()
		delete(d.Spec.Template.Labels, apps.DefaultDeploymentUniqueLabelKey)
		kept := map[string]string{}
		for key, value := range d.Annotations {
			if strings.HasPrefix(key, "deployment.kubernetes.io/") {
				kept[key] = value
			}
		}
		for key, value := range rs.Annotations {
			if !strings.HasPrefix(key, "deployment.kubernetes.io/") {
				kept[key] = value
			}
		}
		d.Annotations = kept
	})
	w.note("user undoes Deployment %s to %s", d.Name, imageOf(rs.Spec.Template))
	return true
}

func (w *world) policy() metav1.DeletionPropagation {
	return []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
	}[w.rng.IntN(3)]
}

func (w *world) deleteDeployment() bool {
	d, ok := pick(w, aDeployment, undeleted)
	if ok {
		w.deleteWith(deployments, d, w.policy())
	}
	return ok
}

func (w *world) deleteReplicaSet() bool {
	rs, ok := pick(w, aReplicaSet, undeleted)
	if ok {
		w.deleteWith(replicaSets, rs, w.policy())
	}
	return ok
}

func (w *world) deleteWith(res resource, o object, policy metav1.DeletionPropagation) {
	w.note("user deletes %s %s, policy %s", res, keyOf(o), policy)
	if policy == metav1.DeletePropagationOrphan {
		w.ledger.orphaned[o.GetUID()] = uidOf(99_999)
	}
	must(w.api.delete(res, keyOf(o), metav1.DeleteOptions{PropagationPolicy: &policy}))
}

func (w *world) deletePod() bool {
	pod, ok := pick(w, aPod, undeleted)
	if ok {
		w.note("user deletes Pod %s", pod.Name)
		must(w.api.delete(pods, keyOf(pod), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](w.rng.Int64N(2) * 30)}))
	}
	return ok
}

// barePod makes a Pod that some ReplicaSet will take for its own.
func (w *world) barePod() bool {
	rs, ok := pick(w, aReplicaSet, undeleted)
	if !ok {
		return false
	}
	pod := &v1.Pod{ObjectMeta: *rs.Spec.Template.ObjectMeta.DeepCopy(), Spec: *rs.Spec.Template.Spec.DeepCopy()}
	pod.Namespace, pod.GenerateName = rs.Namespace, "bare-"
	made, err := w.api.create(pods, pod)
	if err != nil {
		return false // its namespace does not take Pods
	}
	w.note("user creates the bare Pod %s, which %s selects", made.GetName(), rs.Name)
	return true
}

func (w *world) relabelPod() bool {
	pod, ok := pick(w, aPod, func(p *v1.Pod) bool { return undeleted(p) && p.Labels["app"] != "" })
	if ok {
		change(w.api, pods, pod, false, func(p *v1.Pod) { delete(p.Labels, "app") })
		w.note("user takes the label off Pod %s", pod.Name)
	}
	return ok
}

// another is a controller of a kind that nobody here serves.
func another() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Other", Name: "other", UID: "other", Controller: ptr.To(true)}}
}

// stealPod gives a Pod to another controller, labels and all.
func (w *world) stealPod() bool {
	pod, ok := pick(w, aPod, undeleted)
	if ok {
		change(w.api, pods, pod, false, func(p *v1.Pod) { p.OwnerReferences = another() })
		w.note("another controller takes Pod %s", pod.Name)
	}
	return ok
}

// replacePod removes a Pod and makes another of the same name, another's.
func (w *world) replacePod() bool {
	pod, ok := pick(w, aPod, undeleted)
	if !ok {
		return false
	}
	must(w.api.delete(pods, keyOf(pod), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	next := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, OwnerReferences: another()},
		Spec: template("x", "web:1").Spec}
	if _, err := w.api.create(pods, next); err != nil {
		return true // its namespace takes no more Pods
	}
	w.note("another controller makes a Pod of the name %s", pod.Name)
	return true
}

func (w *world) addNode() bool {
	name := fmt.Sprint("node-", w.rng.IntN(4))
	if w.api.objects[nodes][name] != nil {
		return false
	}
	w.makeNode(name, 1000+500*w.rng.Int64N(5))
	return true
}

func (w *world) makeNode(name string, milliCPU int64) {
	_, err := w.api.create(nodes, &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: *quantity.NewMilliQuantity(milliCPU, quantity.DecimalSI), v1.ResourcePods: quantity.MustParse("40"),
		}},
	})
	must(err)
	w.note("node %s joins with %dm", name, milliCPU)
	w.giveNodeAddress(name)
	w.register(name)
}

func (w *world) deleteNode() bool {
	node, ok := pick(w, aNode, undeleted)
	if ok {
		w.note("node %s is lost", node.Name)
		must(w.api.delete(nodes, node.Name, metav1.DeleteOptions{}))
		delete(w.silences.silent, node.Name)
	}
	return ok
}

func (w *world) cordon() bool {
	node, ok := pick(w, aNode, undeleted)
	if ok {
		change(w.api, nodes, node, false, func(n *v1.Node) { n.Spec.Unschedulable = !n.Spec.Unschedulable })
		w.note("user cordons or uncordons %s", node.Name)
	}
	return ok
}
