package garbage

import (
	"cmp"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// listGrace is how long a kind that has not answered its first list may hold
// back what needs the whole graph. Upstream waits as long at its start.
const listGrace = 30 * time.Second

// circleLimit bounds the walk that looks for circles of foreground deletions.
const circleLimit = 10000

// graph is what the watches have shown of every object: its owners and its
// dependents. It holds no object that no watch has shown; an owner that is only
// named has dependents but no node.
//
// Methods that change it return whom to look at because of that change.
type graph struct {
	mu         sync.Mutex
	nodes      map[types.UID]*node
	dependents map[types.UID]map[*node]struct{}
	kinds      map[schema.GroupVersionResource]*kindState
	// settled turns true when the first lists are in. Until then nobody is
	// woken: half a graph shows owners missing that are merely not read yet.
	settled bool
}

type node struct {
	kind            *Kind
	namespace, name string
	uid             types.UID
	resourceVersion string
	owners          []metav1.OwnerReference
	finalizers      []string
	deleting        bool
}

type kindState struct {
	kind   Kind
	listed bool
	since  time.Time
}

// wakes names whom to look at. soon is for owners that no watch has shown: their
// own event is mostly on its way, so a moment's patience saves a read.
type wakes struct{ now, soon []types.UID }

func newGraph() *graph {
	return &graph{
		nodes:      map[types.UID]*node{},
		dependents: map[types.UID]map[*node]struct{}{},
		kinds:      map[schema.GroupVersionResource]*kindState{},
	}
}

func (n *node) isDeletingDependents() bool {
	return n.deleting && slices.Contains(n.finalizers, metav1.FinalizerDeleteDependents)
}

func (n *node) isOrphaning() bool {
	return n.deleting && slices.Contains(n.finalizers, metav1.FinalizerOrphanDependents)
}

// blocks says whether n holds back the foreground deletion of owner. A reference
// that has the UID but means something else (another kind, name or namespace)
// does not: what cannot be its dependent would never go because of it. Its
// version may differ.
func (n *node) blocks(owner *node) bool {
	return slices.ContainsFunc(n.owners, func(ref metav1.OwnerReference) bool {
		return ref.UID == owner.uid && isBlocking(ref) && ref.Kind == owner.kind.Kind && ref.Name == owner.name &&
			(owner.namespace == "" || owner.namespace == n.namespace)
	})
}

func isBlocking(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// isNamedBy says whether ref, found on an object in namespace, gives n by its
// right kind, name and place. A cluster-scoped owner may be named from anywhere.
func (n *node) isNamedBy(ref metav1.OwnerReference, namespace string) bool {
	return ref.Name == n.name && ref.Kind == n.kind.Kind && ref.APIVersion == n.kind.APIVersion() &&
		(n.namespace == "" || n.namespace == namespace)
}

// put takes in what a watch showed of an object.
func (g *graph) put(kind *Kind, obj *metav1.PartialObjectMetadata) wakes {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isWatched(kind) {
		return wakes{}
	}
	return g.putLocked(kind, obj)
}

// isWatched turns away what the watch of a forgotten kind still delivers.
func (g *graph) isWatched(kind *Kind) bool {
	state := g.kinds[kind.Resource]
	return state != nil && &state.kind == kind
}

func (g *graph) putLocked(kind *Kind, obj *metav1.PartialObjectMetadata) wakes {
	n, known := g.nodes[obj.UID]
	if !known {
		n = &node{uid: obj.UID}
		g.nodes[obj.UID] = n
	}
	before := *n
	n.kind, n.namespace, n.name = kind, obj.Namespace, obj.Name
	n.resourceVersion = obj.ResourceVersion
	n.finalizers = obj.Finalizers
	n.deleting = obj.DeletionTimestamp != nil
	if !slices.EqualFunc(before.owners, obj.OwnerReferences, sameReference) {
		n.owners = obj.OwnerReferences
		g.relink(n, before.owners)
	}
	if !g.settled {
		return wakes{}
	}
	return g.consequences(n, before, known)
}

func sameReference(a, b metav1.OwnerReference) bool {
	return isSameOwner(a, b) &&
		isBlocking(a) == isBlocking(b) && (a.Controller != nil && *a.Controller) == (b.Controller != nil && *b.Controller)
}

// relink moves n from the dependents of its former owners to those of its own.
func (g *graph) relink(n *node, former []metav1.OwnerReference) {
	for _, ref := range former {
		g.unlink(n, ref.UID)
	}
	for _, ref := range n.owners {
		if g.dependents[ref.UID] == nil {
			g.dependents[ref.UID] = map[*node]struct{}{}
		}
		g.dependents[ref.UID][n] = struct{}{}
	}
}

func (g *graph) unlink(n *node, owner types.UID) {
	delete(g.dependents[owner], n)
	if len(g.dependents[owner]) == 0 {
		delete(g.dependents, owner)
	}
}

// consequences says whom the change from before to n concerns.
func (g *graph) consequences(n *node, before node, known bool) wakes {
	var w wakes
	if n.isOrphaning() && !before.isOrphaning() {
		w.now = append(w.now, n.uid)
	}
	if n.isDeletingDependents() && !before.isDeletingDependents() {
		w.now = append(w.now, n.uid)
		w.now = append(w.now, g.dependentUIDs(n.uid)...)
	}
	if !known {
		// Dependents seen before their owner may have named it wrongly.
		for dep := range g.dependents[n.uid] {
			if slices.ContainsFunc(dep.owners, func(ref metav1.OwnerReference) bool {
				return ref.UID == n.uid && !n.isNamedBy(ref, dep.namespace)
			}) {
				w.now = append(w.now, dep.uid)
			}
		}
	}
	if !slices.EqualFunc(n.owners, before.owners, sameReference) {
		for _, ref := range n.owners {
			g.newReference(&w, n, ref)
		}
	}
	g.unblocked(&w, n, before.owners)
	return w
}

// newReference looks at a reference of an object whose references have changed.
func (g *graph) newReference(w *wakes, n *node, ref metav1.OwnerReference) {
	owner := g.nodes[ref.UID]
	switch {
	case owner == nil:
		w.soon = append(w.soon, ref.UID)
	case owner.isOrphaning():
		w.now = append(w.now, owner.uid)
	case owner.isDeletingDependents(), !owner.isNamedBy(ref, n.namespace):
		w.now = append(w.now, n.uid)
	}
}

// unblocked wakes the owners in former that wait for their dependents and for
// which the change of n may have ended the wait. Only the last dependent wakes:
// a thousand Pods must not make their owner look a thousand times.
func (g *graph) unblocked(w *wakes, n *node, former []metav1.OwnerReference) {
	for _, ref := range former {
		owner := g.nodes[ref.UID]
		if owner == nil || !isBlocking(ref) || !owner.isDeletingDependents() || n.blocks(owner) && g.nodes[n.uid] == n {
			continue
		}
		if !g.isBlocked(owner) {
			w.now = append(w.now, owner.uid)
		}
	}
}

func (g *graph) isBlocked(owner *node) bool {
	for dep := range g.dependents[owner.uid] {
		if dep.blocks(owner) {
			return true
		}
	}
	return false
}

func (g *graph) dependentUIDs(owner types.UID) []types.UID {
	uids := make([]types.UID, 0, len(g.dependents[owner]))
	for dep := range g.dependents[owner] {
		uids = append(uids, dep.uid)
	}
	return uids
}

// remove takes out an object that a watch showed to be gone.
func (g *graph) remove(uid types.UID) wakes {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.removeLocked(uid)
}

func (g *graph) removeLocked(uid types.UID) wakes {
	n := g.nodes[uid]
	if n == nil {
		return wakes{}
	}
	delete(g.nodes, uid)
	for _, ref := range n.owners {
		g.unlink(n, ref.UID)
	}
	if !g.settled {
		return wakes{}
	}
	w := wakes{now: g.dependentUIDs(uid)}
	g.unblocked(&w, n, n.owners)
	return w
}

// watch adds a kind whose first list is still to come.
func (g *graph) watch(kind Kind, now time.Time) *Kind {
	g.mu.Lock()
	defer g.mu.Unlock()
	state := &kindState{kind: kind, since: now}
	g.kinds[kind.Resource] = state
	return &state.kind
}

// forget takes out a kind that is no longer served, with its objects.
func (g *graph) forget(kind *Kind) wakes {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isWatched(kind) {
		delete(g.kinds, kind.Resource)
	}
	return g.removeWhere(func(n *node) bool { return n.kind == kind })
}

// replace takes in a full list of one kind.
func (g *graph) replace(kind *Kind, objs []*metav1.PartialObjectMetadata, now time.Time) wakes {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isWatched(kind) {
		return wakes{}
	}
	var w wakes
	listed := make(map[types.UID]bool, len(objs))
	for _, obj := range objs {
		listed[obj.UID] = true
		w.add(g.putLocked(kind, obj))
	}
	w.add(g.removeWhere(func(n *node) bool { return n.kind == kind && !listed[n.uid] }))
	state := g.kinds[kind.Resource]
	if state.listed {
		return w
	}
	state.listed = true
	if g.completeAt(now).IsZero() {
		w.add(g.settle())
	}
	return w
}

func (g *graph) removeWhere(gone func(*node) bool) wakes {
	var w wakes
	for uid, n := range g.nodes {
		if gone(n) {
			w.add(g.removeLocked(uid))
		}
	}
	return w
}

func (w *wakes) add(other wakes) {
	w.now = append(w.now, other.now...)
	w.soon = append(w.soon, other.soon...)
}

// completeAt is zero when every kind has been listed or has had its time, else
// the moment when the last of them will have had it.
func (g *graph) completeAt(now time.Time) time.Time {
	var at time.Time
	for _, state := range g.kinds {
		if end := state.since.Add(listGrace); !state.listed && end.After(now) && end.After(at) {
			at = end
		}
	}
	return at
}

// settleIfComplete starts the work when the last kind that did not answer has
// had its time.
func (g *graph) settleIfComplete(now time.Time) wakes {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.settled || len(g.kinds) == 0 || !g.completeAt(now).IsZero() {
		return wakes{}
	}
	return g.settle()
}

// settle looks at everything once, as if it had just been seen. It runs at the
// start, and again when a later kind completes the graph, for those who waited.
func (g *graph) settle() wakes {
	g.settled = true
	var w wakes
	for _, n := range g.nodes {
		if n.isOrphaning() || n.isDeletingDependents() {
			w.now = append(w.now, n.uid)
		}
		for _, ref := range n.owners {
			g.newReference(&w, n, ref)
		}
	}
	return w
}

// watchedKinds are all kinds that could hold dependents, in a fixed order.
func (g *graph) watchedKinds() []Kind {
	g.mu.Lock()
	defer g.mu.Unlock()
	kinds := make([]Kind, 0, len(g.kinds))
	for _, state := range g.kinds {
		kinds = append(kinds, state.kind)
	}
	slices.SortFunc(kinds, func(a, b Kind) int { return cmp.Compare(a.Resource.String(), b.Resource.String()) })
	return kinds
}

// sighting is what the graph knows about one UID.
type sighting struct {
	object     *Object // nil: no watch has shown it
	dependents []Dependent
	completeAt time.Time
}

func (g *graph) sight(uid types.UID, now time.Time) sighting {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := sighting{completeAt: g.completeAt(now)}
	n := g.nodes[uid]
	if n != nil {
		obj := n.object()
		s.object = &obj
	}
	isWaiting := n != nil && n.isDeletingDependents()
	for dep := range g.dependents[uid] {
		s.dependents = append(s.dependents, Dependent{
			Object:   dep.object(),
			Blocking: n != nil && dep.blocks(n),
			InCircle: isWaiting && g.waitsFor(dep, n),
		})
	}
	slices.SortFunc(s.dependents, func(a, b Dependent) int { return cmp.Compare(a.UID, b.UID) })
	return s
}

func (n *node) object() Object {
	return Object{
		Kind: *n.kind, Namespace: n.namespace, Name: n.name, UID: n.uid,
		ResourceVersion: n.resourceVersion, Owners: n.owners, Finalizers: n.finalizers, Deleting: n.deleting,
	}
}

// waitsFor says whether from, a dependent that blocks target, is being deleted
// in the foreground and waits, directly or through others, for target.
func (g *graph) waitsFor(from, target *node) bool {
	if !from.isDeletingDependents() || !from.blocks(target) {
		return false
	}
	seen := map[*node]bool{from: true}
	for next := []*node{from}; len(next) > 0 && len(seen) < circleLimit; {
		at := next[0]
		next = next[1:]
		if at == target {
			return true
		}
		for dep := range g.dependents[at.uid] {
			if !seen[dep] && dep.isDeletingDependents() && dep.blocks(at) {
				seen[dep] = true
				next = append(next, dep)
			}
		}
	}
	return false
}

// ownerSeen is what the graph knows of an owner by its UID alone.
type ownerSeen struct {
	lives     bool // seen under the coordinates of the reference, and not waiting for dependents
	elsewhere bool // seen in another namespace than the reference can mean
}

func (g *graph) owner(ref metav1.OwnerReference, namespace string) ownerSeen {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[ref.UID]
	if n == nil {
		return ownerSeen{}
	}
	return ownerSeen{
		lives:     n.isNamedBy(ref, namespace) && !n.isDeletingDependents(),
		elsewhere: n.namespace != "" && n.namespace != namespace,
	}
}
