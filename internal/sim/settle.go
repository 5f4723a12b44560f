package sim

import (
	"fmt"
	"strconv"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// settleSyncs and settleTime bound how long the world may take to converge once
	// faults have stopped.
	settleSyncs = 4000
	settleTime  = 2 * time.Hour
	// quietTime without any change is convergence: longer than any back-off and any
	// deadline of a rollout.
	quietTime = 11 * time.Minute
	// restTime is for how long nothing may move afterwards.
	restTime = 20 * time.Minute
)

// settle ends the faults, lets users ask for what can be had, and expects the
// world to converge and then to stay.
func (w *world) settle() {
	w.reseed(1_000_000 + w.step)
	w.faults = false
	w.note("faults stop")
	w.endure()
	w.freeNamespaces()
	w.landSlow(time.Hour)
	w.makePossible()
	w.tidyEndpoints()
	w.lastFault = true
	if !w.converge() || w.broken != "" {
		return
	}
	w.lastFault = false
	w.checkConverged()
	if w.broken == "" {
		w.checkRest()
	}
}

// makePossible: enough nodes, images that run, nothing paused.
func (w *world) makePossible() {
	for i := range 2 {
		name := fmt.Sprint("spare-", i)
		if w.api.objects[nodes][name] == nil {
			w.makeNode(name, 6000)
		}
	}
	for _, n := range listOf[*v1.Node](w.api, nodes) {
		change(w.api, nodes, n, false, func(n *v1.Node) { n.Spec.Unschedulable = false })
	}
	for _, d := range listOf[*apps.Deployment](w.api, deployments) {
		if d.DeletionTimestamp != nil || imageOf(d.Spec.Template) != badImage && !d.Spec.Paused {
			continue
		}
		change(w.api, deployments, d, false, func(d *apps.Deployment) {
			d.Spec.Paused = false
			if imageOf(d.Spec.Template) == badImage {
				d.Spec.Template = template(d.Name, "web:1")
			}
		})
		w.note("user resumes and corrects Deployment %s", d.Name)
	}
}

// converge works until no key is ready, no watch behind, the agent has nothing to
// do, and the waits that are left change nothing.
func (w *world) converge() bool {
	// What the wall clock tells must be past all that was written before it jumped.
	patience := quietTime + w.jumped
	syncs, until := 0, w.clock.passed+settleTime+2*w.jumped
	for moved := w.clock.passed; w.clock.passed <= moved+patience; {
		before := w.api.moves
		for {
			w.deliverAll()
			w.ledger.settleAccounts()
			ready := w.life.ready()
			if len(ready) == 0 {
				w.checkWaiting()
				w.checkShown()
				w.checkMirrored()
				w.checkBalanced()
				break
			}
			if syncs++; syncs > settleSyncs {
				w.breach("does not converge within %d syncs; ready: %s %s", settleSyncs, ready[0].loop.Name(), ready[0].key)
			}
			w.life.step(ready[w.rng.IntN(len(ready))])
			if w.broken != "" {
				return false
			}
		}
		if w.agentsActHealthy() || w.api.moves != before {
			moved = w.clock.passed
			continue
		}
		if !w.passToNextWait() {
			w.pass(moved + patience - w.clock.passed)
			return true
		}
		if w.clock.passed > until {
			w.breach("does not converge within %s", until)
			return false
		}
	}
	return true
}

// checkWaiting expects that no Pod waits that some node could take, unless its
// loop is about to look again: five minutes later the scheduler repeats why a Pod
// waits, and that must not be what finds the room.
func (w *world) checkWaiting() {
	var waits map[string]time.Duration
	for _, d := range w.life.loops {
		if d.Name() == "scheduler" {
			waits = d.queue.waits
		}
	}
	for _, pod := range listOf[*v1.Pod](w.api, pods) {
		at, isWaiting := waits[keyOf(pod)]
		if pod.Spec.NodeName != "" || !isActive(pod) || isWaiting && at-w.clock.passed <= 31*time.Second {
			continue
		}
		for _, node := range listOf[*v1.Node](w.api, nodes) {
			cpu, count := w.used(node.Name)
			if takesPods(node) && cpu+milliCPU(pod) <= node.Status.Allocatable.Cpu().MilliValue() &&
				count < node.Status.Allocatable.Pods().Value() {
				w.breach("Pod %s waits although it fits %s", pod.Name, node.Name)
				return
			}
		}
	}
}

// agentsActHealthy brings about half of the Pods one state on.
func (w *world) agentsActHealthy() bool {
	moved := false
	for _, pod := range listOf[*v1.Pod](w.api, pods) {
		if w.isOnNode(pod) && (w.rng.IntN(2) == 0 || !moved) {
			moved = w.bringOn(pod) || moved
		}
	}
	return moved
}

// passToNextWait lets time pass until a wait is over; false if nobody waits.
func (w *world) passToNextWait() bool {
	next := time.Duration(-1)
	for _, d := range w.life.loops {
		for key, at := range d.queue.waits {
			if key == pulse {
				continue // passing time serves it
			}
			if next < 0 || at < next {
				next = at
			}
		}
	}
	if next < 0 {
		return false
	}
	w.pass(max(0, next-w.clock.passed))
	return true
}

// checkConverged compares the world with what was asked for.
func (w *world) checkConverged() {
	for _, d := range listOf[*apps.Deployment](w.api, deployments) {
		if d.DeletionTimestamp != nil {
			w.breach("Deployment %s is still being deleted, finalizers %v", d.Name, d.Finalizers)
			return
		}
		w.checkDeployment(d)
	}
	w.checkNodes()
	w.checkNamespaces()
	w.checkShown()
	w.checkMirrored()
	w.checkBalanced()
	w.checkAddresses()
	for _, res := range []resource{replicaSets, pods, services, endpointSlices} {
		for _, o := range w.api.all(res) {
			w.checkOwned(res, o)
		}
	}
}

func (w *world) checkDeployment(d *apps.Deployment) {
	want, have := int(*d.Spec.Replicas), w.count(d)
	if have.active != want || have.available != want {
		w.breach("%s wants %d Pods and has %d, %d of them available", keyOf(d), want, have.active, have.available)
	}
	s := d.Status
	if s.ObservedGeneration != d.Generation || int(s.Replicas) != want || int(s.UpdatedReplicas) != want ||
		int(s.ReadyReplicas) != want || int(s.AvailableReplicas) != want || s.UnavailableReplicas != 0 {
		w.breach("the status of %s tells something else than %d of generation %d: %+v", keyOf(d), want, d.Generation, s)
	}
	w.checkHistory(d)
}

// checkHistory checks the sizes and revisions of the ReplicaSets.
func (w *world) checkHistory(d *apps.Deployment) {
	seen, highest := map[int]string{}, 0
	for _, rs := range listOf[*apps.ReplicaSet](w.api, replicaSets) {
		if !metav1.IsControlledBy(rs, d) {
			continue
		}
		isNew := imageOf(rs.Spec.Template) == imageOf(d.Spec.Template)
		if !isNew && *rs.Spec.Replicas != 0 {
			w.breach("the old ReplicaSet %s still wants %d Pods", rs.Name, *rs.Spec.Replicas)
		}
		revision, ok := revisionOf(rs)
		// One that is older than the Deployment had its revision from another, and may be
		// adopted late: upstream leaves both as they are.
		if other := seen[revision]; ok && other != "" && rs.UID > d.UID {
			w.breach("%s and %s are both revision %d", other, rs.Name, revision)
		}
		if rs.UID > d.UID {
			seen[revision] = rs.Name
		}
		highest = max(highest, revision)
	}
	if now, _ := revisionOf(d); now != highest {
		w.breach("%s is at revision %d, its newest ReplicaSet at %d", keyOf(d), now, highest)
	}
}

// revisionsGrow checks every change of a revision.
func (w *world) revisionsGrow(res resource, before, after object) {
	if before == nil || after == nil || before.GetUID() != after.GetUID() || res != deployments && res != replicaSets {
		return
	}
	old, had := revisionOf(before)
	now, has := revisionOf(after)
	if !had || has && now >= old {
		return
	}
	w.breach("the revision of %s %s goes from %d to %d", res, keyOf(after), old, now)
}

func revisionOf(o object) (int, bool) {
	n, err := strconv.Atoi(o.GetAnnotations()[revisionAnnotation])
	return n, err == nil
}

// checkOwned checks that what is left has an owner, or was let go of.
func (w *world) checkOwned(res resource, o object) {
	if o.GetDeletionTimestamp() != nil {
		w.breach("%s %s is still being deleted, finalizers %v", res, keyOf(o), o.GetFinalizers())
		return
	}
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind != "Other" && w.byUID(ref.UID) == nil {
			w.breach("%s %s has outlived its owner %s", res, keyOf(o), ref.Name)
		}
	}
	pod, isPod := o.(*v1.Pod)
	if !isPod || isOver(pod) {
		return
	}
	if pod.Spec.NodeName == "" || w.api.objects[nodes][pod.Spec.NodeName] == nil {
		w.breach("Pod %s is on the node %q, which is not there", pod.Name, pod.Spec.NodeName)
	}
	if metav1.GetControllerOfNoCopy(pod) != nil {
		return
	}
	for _, rs := range listOf[*apps.ReplicaSet](w.api, replicaSets) {
		selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
		must(err)
		if rs.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
			w.breach("nobody has adopted Pod %s, which %s selects", pod.Name, rs.Name)
		}
	}
}

// checkRest expects no loop to write anything: while time passes, when every
// watch repeats itself, and after a restart.
func (w *world) checkRest() {
	before := w.writes
	for end := w.clock.passed + restTime; w.clock.passed < end; {
		if !w.passToNextWait() {
			break
		}
		w.workAll()
	}
	if w.writes != before {
		w.breach("at rest %d writes were made", w.writes-before)
		return
	}
	for _, s := range w.life.streams {
		s.repeat()
		s.relist()
	}
	w.workAll()
	if w.writes != before {
		w.breach("watches that started over caused %d writes", w.writes-before)
		return
	}
	w.crash()
	w.restartIfDead()
	w.deliverAll()
	w.workAll()
	if w.writes != before {
		w.breach("a restart caused %d writes", w.writes-before)
	}
}

// workAll works on all that is ready, until nothing is.
func (w *world) workAll() {
	for range settleSyncs {
		w.deliverAll()
		ready := w.life.ready()
		if len(ready) == 0 || w.broken != "" {
			return
		}
		w.life.step(ready[w.rng.IntN(len(ready))])
	}
	w.breach("is busy without end")
}
