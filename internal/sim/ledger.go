package sim

import (
	"math"
	"slices"
	"strings"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const revisionAnnotation = "deployment.kubernetes.io/revision"

// ledger holds what each Deployment may do at the moment.
//
// The floor and ceiling of its spec cannot hold at once after a user changed them,
// or after Pods broke down: a Deployment scaled from 10 to 3 has 10 Pods for a
// while. So an account is kept: the bounds are the widest of all specs, and every
// available Pod that was lost by other hands than the ReplicaSet loop's is on the
// credit side, since the Deployment was last quiet, that is acknowledged, seen by
// all caches, and within the bounds of its present spec.
type ledger struct {
	w        *world
	accounts map[types.UID]*account
	// orphaned are owners deleted with the policy orphan, and which UID was the last
	// to be given when each was gone. What is made later for an owner that a cache
	// still shows is no orphan but garbage.
	orphaned map[types.UID]types.UID
	// reowned are orphans that a loop gave back to an owner that only its cache had.
	reowned map[types.UID]bool
	// extra are the ReplicaSets that may have more Pods than they ask for, because
	// the answer to a create was lost.
	extra map[types.UID]bool
}

type account struct {
	ceiling, floor int
	lost           int // available Pods gone by other hands
	more           int // Pods that came by other ways than a create that was heard
}

func newLedger(w *world) *ledger {
	return &ledger{w: w, accounts: map[types.UID]*account{}, orphaned: map[types.UID]types.UID{}, reowned: map[types.UID]bool{}, extra: map[types.UID]bool{}}
}

// bounds are the floor and ceiling that the spec asks for. Recreate has none.
func bounds(d *apps.Deployment) (floor, ceiling int) {
	want := int(*d.Spec.Replicas)
	if d.Spec.Strategy.Type != apps.RollingUpdateDeploymentStrategyType {
		return 0, math.MaxInt32
	}
	surge := scaled(d.Spec.Strategy.RollingUpdate.MaxSurge, want, true)
	unavailable := scaled(d.Spec.Strategy.RollingUpdate.MaxUnavailable, want, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return max(0, want-unavailable), want + surge
}

func scaled(of *intstr.IntOrString, want int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(of, want, up)
	must(err)
	return n
}

// changed follows every change of the truth.
func (l *ledger) changed(res resource, before, after object) {
	if before != nil && after == nil {
		if _, was := l.orphaned[before.GetUID()]; was {
			l.orphaned[before.GetUID()] = l.w.api.lastUID()
		}
	}
	l.noteReowned(before, after)
	switch res {
	case deployments:
		l.deploymentChanged(before, after)
	case pods:
		l.podChanged(before, after)
	case replicaSets:
		l.replicaSetChanged(before, after)
	case nodes, leases, namespaces, serviceAccounts, configMaps, services, endpointSlices, endpointsRes, serviceCIDRs, ipAddresses:
	}
}

// replicaSetChanged books the Pods of a ReplicaSet that its Deployment loses.
func (l *ledger) replicaSetChanged(before, after object) {
	if before == nil {
		return
	}
	d := metav1.GetControllerOfNoCopy(before)
	if d == nil || l.accounts[d.UID] == nil || after != nil && metav1.GetControllerOfNoCopy(after) != nil {
		return
	}
	for _, o := range l.w.api.objects[pods] {
		if metav1.IsControlledBy(o, before) && l.w.isAvailable(o.(*v1.Pod), before.(*apps.ReplicaSet)) {
			l.accounts[d.UID].lost++
		}
	}
}

func (l *ledger) deploymentChanged(before, after object) {
	if after == nil {
		delete(l.accounts, before.GetUID())
		return
	}
	floor, ceiling := bounds(after.(*apps.Deployment))
	a := l.accounts[after.GetUID()]
	if a == nil {
		// It may have adopted, and its Pods are not there yet.
		l.accounts[after.GetUID()] = &account{ceiling: ceiling}
		return
	}
	a.floor, a.ceiling = min(a.floor, floor), max(a.ceiling, ceiling)
}

// podChanged books available Pods that are lost. One that the ReplicaSet loop
// deletes is not booked: that is what the floor is about.
func (l *ledger) podChanged(before, after object) {
	if before == nil {
		return
	}
	old := before.(*v1.Pod)
	a, rs := l.accountOf(old)
	if a == nil || !l.w.isAvailable(old, rs) {
		return
	}
	var now *v1.Pod
	if after != nil {
		now = after.(*v1.Pod)
	}
	if now != nil && l.w.isAvailable(now, rs) && metav1.IsControlledBy(now, rs) {
		return
	}
	if c := l.w.caller; c != nil && c.loop == "replicaset" && l.w.calling == "delete" {
		return
	}
	a.lost++
}

// accountOf finds the Deployment of a Pod, by way of its ReplicaSet.
func (l *ledger) accountOf(pod *v1.Pod) (*account, *apps.ReplicaSet) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return nil, nil
	}
	o := l.w.api.objects[replicaSets][pod.Namespace+"/"+owner.Name]
	if o == nil || o.GetUID() != owner.UID {
		return nil, nil
	}
	rs := o.(*apps.ReplicaSet)
	if d := metav1.GetControllerOfNoCopy(rs); d != nil {
		return l.accounts[d.UID], rs
	}
	return nil, nil
}

// unheard notes a create that the loop must believe failed. It cannot know better,
// so for a while there may be one Pod more.
func (l *ledger) unheard(s *syncing, r request, o object) {
	if r.verb != "create" || r.res != pods {
		return
	}
	l.extra[s.owner.GetUID()] = true
	if a, _ := l.accountOf(o.(*v1.Pod)); a != nil {
		a.more++
	}
}

// census is what a Deployment really has.
type census struct {
	active, available int
	byReplicaSet      map[types.UID]int // active
}

func (w *world) count(d *apps.Deployment) census {
	c := census{byReplicaSet: map[types.UID]int{}}
	sets := map[types.UID]*apps.ReplicaSet{}
	for _, o := range w.api.objects[replicaSets] {
		if metav1.IsControlledBy(o, d) {
			sets[o.GetUID()] = o.(*apps.ReplicaSet)
		}
	}
	for _, o := range w.api.objects[pods] {
		pod := o.(*v1.Pod)
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || sets[owner.UID] == nil || !isActive(pod) {
			continue
		}
		c.active++
		c.byReplicaSet[owner.UID]++
		if w.isAvailable(pod, sets[owner.UID]) {
			c.available++
		}
	}
	return c
}

// isAvailable says whether the Pod serves, by the clock on the wall. One that is ready
// since a time to come was so before that clock was set back.
func (w *world) isAvailable(pod *v1.Pod, rs *apps.ReplicaSet) bool {
	since, ready := readySince(pod)
	wait := time.Duration(rs.Spec.MinReadySeconds) * time.Second
	now := w.clock.Now()
	return isActive(pod) && ready && (wait == 0 || !since.Add(wait).After(now) || since.After(now.Add(time.Minute)))
}

func readySince(pod *v1.Pod) (time.Time, bool) {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

func (w *world) deploymentOf(rs *apps.ReplicaSet) *apps.Deployment {
	if rs == nil {
		return nil
	}
	owner := metav1.GetControllerOfNoCopy(rs)
	if owner == nil {
		return nil
	}
	if o := w.api.objects[deployments][rs.Namespace+"/"+owner.Name]; o != nil && o.GetUID() == owner.UID {
		return o.(*apps.Deployment)
	}
	return nil
}

// lives says whether the object is there, the same one, and nobody deletes it.
func (w *world) lives(o object) bool {
	for _, res := range everything {
		if now := w.api.objects[res][keyOf(o)]; now != nil && now.GetUID() == o.GetUID() {
			return now.GetDeletionTimestamp() == nil
		}
	}
	return false
}

// settleAccounts closes the accounts of the Deployments that are quiet. It is
// called between syncs: one under way may have seen an older world.
func (l *ledger) settleAccounts() {
	if !l.w.life.isCaughtUp() || len(l.w.life.syncs) > 0 {
		return
	}
	clear(l.extra)
	l.w.slicesKnown = true
	for _, d := range listOf[*apps.Deployment](l.w.api, deployments) {
		a := l.accounts[d.UID]
		floor, ceiling := bounds(d)
		have := l.w.count(d)
		if d.Status.ObservedGeneration != d.Generation || int(d.Status.AvailableReplicas) != have.available {
			continue
		}
		planned, reported, acknowledged := 0, 0, true
		for _, rs := range listOf[*apps.ReplicaSet](l.w.api, replicaSets) {
			if metav1.IsControlledBy(rs, d) {
				planned += max(int(*rs.Spec.Replicas), have.byReplicaSet[rs.UID])
				reported += int(rs.Status.AvailableReplicas)
				acknowledged = acknowledged && rs.Status.ObservedGeneration == rs.Generation &&
					int(rs.Status.Replicas) == have.byReplicaSet[rs.UID]
			}
		}
		if !acknowledged || planned > ceiling || reported != have.available {
			continue
		}
		a.ceiling, a.more = ceiling, 0
		if have.available >= floor {
			a.floor, a.lost = floor, 0
		}
	}
}

// loseAll: the clock went back, and what was available may not be for a while.
func (l *ledger) loseAll() {
	for _, a := range l.accounts {
		a.lost += 1000
	}
}

// judge checks what a loop is about to do.
func (w *world) judge(s *syncing, r request) {
	if !r.isWrite() {
		return
	}
	target := w.api.objects[r.res][r.key]
	w.targetServed = w.isServing(target)
	if s.judge != nil {
		s.judge(r, target)
	}
	switch s.loop {
	case "replicaset", "deployment":
		w.judgeOwner(s, r, target)
	case "nodehealth", "tainteviction":
		w.judgeSilence(s, r, target)
	case "endpointslice", "endpoints":
		w.judgeShown(s, r)
	case "garbage":
		switch {
		case target == nil:
		case r.verb == "delete":
			w.judgeGarbage(target)
		case !w.faults && w.life.isCaughtUp() && strings.Contains(string(r.body), `"value":"foregroundDeletion"`):
			w.judgeRelease(target)
		}
	}
	if r.obj != nil && controllers(r.obj) > 1 {
		w.breach("%s gives %s two controllers", s.loop, r.key)
	}
}

// isServing says whether the target is an available Pod of a ReplicaSet.
func (w *world) isServing(target object) bool {
	pod, ok := target.(*v1.Pod)
	if !ok {
		return false
	}
	_, rs := w.ledger.accountOf(pod)
	return rs != nil && w.isAvailable(pod, rs)
}

// judgeOwner checks that a loop touches what is its own, or nobody's, and only
// for an owner that it can still believe in.
func (w *world) judgeOwner(s *syncing, r request, target object) {
	ownKind := r.res == pods && s.loop == "replicaset" || r.res == replicaSets && s.loop == "deployment"
	if !ownKind {
		return
	}
	if s.owner == nil {
		w.breach("%s: %s for an owner that the cache does not have", s.loop, r)
		return
	}
	if r.verb == "create" {
		if s.owner.GetDeletionTimestamp() != nil {
			w.breach("%s: %s for an owner whose deletion it has seen", s.loop, r)
		}
		return
	}
	if target == nil {
		return
	}
	owner := metav1.GetControllerOfNoCopy(target)
	isOwn := owner != nil && owner.UID == s.owner.GetUID()
	if r.verb == "patch" && owner == nil { // adoption
		if !s.ownerWas {
			w.mayBreach = "adopts " + r.key + " for an owner that was being deleted before"
		}
		return
	}
	if !isOwn {
		w.mayBreach = "touches " + r.key + ", which is another's"
	}
}

// judgeGarbage checks that no owner of what is to go is there.
func (w *world) judgeGarbage(o object) {
	if len(o.GetOwnerReferences()) == 0 {
		w.mayBreach = "collects " + keyOf(o) + ", which names no owner"
	}
	for _, ref := range o.GetOwnerReferences() {
		owner := w.byUID(ref.UID)
		if owner != nil && (owner.GetDeletionTimestamp() == nil ||
			!slices.Contains(owner.GetFinalizers(), metav1.FinalizerDeleteDependents)) {
			w.mayBreach = "collects " + keyOf(o) + " of " + ref.Name + ", which is there"
		}
		if last, was := w.ledger.orphaned[ref.UID]; was && o.GetUID() <= last && !w.ledger.reowned[o.GetUID()] {
			w.mayBreach = "collects " + keyOf(o) + ", which its owner orphaned"
		}
	}
}

// judgeRelease checks that an owner deleted in the foreground goes last. Only what
// all watches have shown can be expected to be known.
func (w *world) judgeRelease(owner object) {
	for _, res := range []resource{replicaSets, pods, endpointSlices} {
		for _, o := range w.api.objects[res] {
			for _, ref := range o.GetOwnerReferences() {
				if ref.UID == owner.GetUID() && ptr.Deref(ref.BlockOwnerDeletion, false) {
					w.mayBreach = "lets go of " + keyOf(owner) + " before its dependents"
				}
			}
		}
	}
}

func (w *world) byUID(uid types.UID) object {
	for _, res := range everything {
		for _, o := range w.api.objects[res] {
			if o.GetUID() == uid {
				return o
			}
		}
	}
	return nil
}

// judged checks what a write has done. What judge suspected is a breach only if
// no precondition stopped it.
func (w *world) judged(s *syncing, r request, o object, err error, changed bool) {
	if w.mayBreach != "" && err == nil && changed {
		w.breach("%s %s", s.loop, w.mayBreach)
	}
	w.mayBreach = ""
	if err != nil {
		return
	}
	switch {
	case s.loop == "replicaset" && r.res == pods:
		w.judgeCount(s, r)
	case r.verb == "bind":
		w.judgeNode(string(r.body))
	}
	if s.loop == "deployment" && r.verb == "patch" || s.loop == "replicaset" && r.verb == "patch" {
		w.adopted(o)
	}
}

// adopted: Pods came that no rollout made.
func (w *world) adopted(o object) {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil {
		return
	}
	if a := w.ledger.accounts[owner.UID]; a != nil { // a ReplicaSet, with all its Pods
		a.more += 1000
	}
	if pod, ok := o.(*v1.Pod); ok {
		if a, _ := w.ledger.accountOf(pod); a != nil {
			a.more++
		}
	}
}

// judgeCount checks floor and ceiling after the ReplicaSet loop made or removed a
// Pod, and that it made no more than its ReplicaSet asked for.
func (w *world) judgeCount(s *syncing, r request) {
	rs, _ := w.api.objects[replicaSets][s.key].(*apps.ReplicaSet)
	if r.verb == "create" && s.owner != nil {
		asked, have := int(*s.owner.(*apps.ReplicaSet).Spec.Replicas), w.podsOf(s.owner.GetUID())
		if have > asked && !w.ledger.extra[s.owner.GetUID()] {
			w.breach("ReplicaSet %s has %d Pods where it was read to ask for %d", s.key, have, asked)
		}
	}
	d := w.deploymentOf(rs)
	if d == nil {
		return
	}
	a, have := w.ledger.accounts[d.UID], w.count(d)
	if r.verb == "create" && have.active > a.ceiling+a.more {
		w.breach("%s has %d Pods, above the ceiling of %d (and %d adopted or unheard of)", keyOf(d), have.active, a.ceiling, a.more)
	}
	if r.verb == "delete" && w.targetServed && have.available+a.lost < a.floor {
		w.breach("%s has %d available Pods, below the floor of %d (%d were lost)", keyOf(d), have.available, a.floor, a.lost)
	}
}

func (w *world) podsOf(owner types.UID) int {
	n := 0
	for _, o := range w.api.objects[pods] {
		if c := metav1.GetControllerOfNoCopy(o); c != nil && c.UID == owner && isActive(o.(*v1.Pod)) {
			n++
		}
	}
	return n
}

// judgeNode checks that a node is not given more than it has.
func (w *world) judgeNode(name string) {
	node, _ := w.api.objects[nodes][name].(*v1.Node)
	if node == nil {
		return // gone while the cache still shows it
	}
	cpu, count := w.used(name)
	if has := node.Status.Allocatable; cpu > has.Cpu().MilliValue() || count > has.Pods().Value() {
		w.breach("node %s is over-committed: %d Pods with %dm", name, count, cpu)
	}
}

// used is what the Pods on a node ask for, in thousandths of a core, and their number.
func (w *world) used(node string) (cpu, count int64) {
	for _, o := range w.api.objects[pods] {
		if pod := o.(*v1.Pod); pod.Spec.NodeName == node && !isOver(pod) {
			count++
			cpu += milliCPU(pod)
		}
	}
	return cpu, count
}

func milliCPU(pod *v1.Pod) int64 { return pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() }
