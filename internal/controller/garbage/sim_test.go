package garbage

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
)

// world is an API server in memory with watches that lag, in front of which the
// real plan, apply and graph run. It has the rules of deletion that this loop
// builds on: finalizers, propagation policies, preconditions.
type world struct {
	kinds   []Kind
	objects map[types.UID]*Object
	revs    int
	log     map[schema.GroupVersionResource][]change // every change, by kind
	fail    func(verb string) error                  // injected into each call
	broken  []string                                 // promises that were broken

	// orphaned holds, by owner, the dependents it had when it was deleted with
	// the policy orphan.
	orphaned map[types.UID]orphans
	writes   int
}

type orphans struct {
	owner      Object
	dependents []types.UID
}

type change struct {
	gone bool
	obj  Object
}

func newWorld() *world {
	return &world{
		kinds: []Kind{deployments, replicaSets, pods, nodes}, objects: map[types.UID]*Object{},
		log: map[schema.GroupVersionResource][]change{}, orphaned: map[types.UID]orphans{},
		fail: func(string) error { return nil },
	}
}

func (w *world) breach(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

func (w *world) changed(o *Object) {
	w.revs++
	o.ResourceVersion = strconv.Itoa(w.revs)
	o.Owners, o.Finalizers = slices.Clone(o.Owners), slices.Clone(o.Finalizers)
	gone := o.Deleting && len(o.Finalizers) == 0
	if gone {
		delete(w.objects, o.UID)
	}
	w.log[o.Kind.Resource] = append(w.log[o.Kind.Resource], change{gone, *o})
}

func (w *world) create(kind Kind, namespace, name string, owners ...metav1.OwnerReference) *Object {
	o := &Object{Kind: kind, Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%s-%s-%d", namespace, name, w.revs)), Owners: owners}
	w.objects[o.UID] = o
	w.changed(o)
	return o
}

func (w *world) named(kind Kind, namespace, name string) *Object {
	for _, o := range w.objects {
		if o.Kind == kind && o.Namespace == namespace && o.Name == name {
			return o
		}
	}
	return nil
}

// sorted gives a fixed order, for choices that must repeat with the seed.
func (w *world) sorted() []*Object {
	var all []*Object
	for _, o := range w.objects {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b *Object) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return all
}

// dependentsOf leaves out references that have the UID but mean something else.
func (w *world) dependentsOf(uid types.UID) []types.UID {
	var all []types.UID
	for _, o := range w.sorted() {
		if slices.ContainsFunc(o.Owners, func(r metav1.OwnerReference) bool {
			state := w.ownerState(*o, r)
			return r.UID == uid && (state == OwnerLives || state == OwnerDeletingDependents)
		}) {
			all = append(all, o.UID)
		}
	}
	return all
}

// erase is a DELETE with a propagation policy.
func (w *world) erase(o *Object, policy metav1.DeletionPropagation) {
	o.Finalizers = slices.DeleteFunc(slices.Clone(o.Finalizers), func(f string) bool { return f == "orphan" || f == "foregroundDeletion" })
	if policy != metav1.DeletePropagationOrphan {
		delete(w.orphaned, o.UID) // the user thought better of it
	}
	switch policy {
	case metav1.DeletePropagationOrphan:
		o.Finalizers = append(o.Finalizers, "orphan")
		if !o.Deleting {
			w.orphaned[o.UID] = orphans{*o, w.dependentsOf(o.UID)}
		}
	case metav1.DeletePropagationForeground:
		o.Finalizers = append(o.Finalizers, "foregroundDeletion")
	case metav1.DeletePropagationBackground:
	}
	if !o.Deleting && strings.HasPrefix(o.Name, "slow") {
		o.Finalizers = append(o.Finalizers, "test/grace")
	}
	o.Deleting = true
	w.changed(o)
}

// ownerState judges a reference by the world as it really is.
func (w *world) ownerState(o Object, r metav1.OwnerReference) OwnerState {
	kind, ok := w.catalog().kindOf(r.APIVersion, r.Kind)
	if !ok {
		return OwnerUnknown
	}
	namespace := o.Namespace
	if !kind.Namespaced {
		namespace = ""
	} else if namespace == "" {
		return OwnerOutOfReach
	}
	owner := w.objects[r.UID]
	switch {
	case owner == nil || owner.Kind != kind || owner.Name != r.Name || owner.Namespace != namespace:
		return OwnerAbsent
	case owner.isDeletingDependents():
		return OwnerDeletingDependents
	default:
		return OwnerLives
	}
}

func (w *world) catalog() catalog {
	c := catalog{served: map[schema.GroupVersionKind]Kind{}, watched: w.kinds}
	for _, k := range w.kinds {
		c.served[k.Resource.GroupVersion().WithKind(k.Kind)] = k
	}
	return c
}

// The rest is the server interface.

func (w *world) find(kind Kind, namespace, name string) (*Object, error) {
	if o := w.named(kind, namespace, name); o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(kind.Resource.GroupResource(), name)
}

func (w *world) get(_ context.Context, kind Kind, namespace, name string) (Object, error) {
	if err := w.fail("get"); err != nil {
		return Object{}, err
	}
	o, err := w.find(kind, namespace, name)
	if err != nil {
		return Object{}, err
	}
	return *o, nil
}

func (w *world) list(_ context.Context, kind Kind, namespace string) ([]Object, error) {
	var all []Object
	for _, o := range w.sorted() {
		if o.Kind == kind && (namespace == "" || o.Namespace == namespace) {
			all = append(all, *o)
		}
	}
	return all, nil
}

func (w *world) delete(_ context.Context, target Object, opts metav1.DeleteOptions) error {
	if err := w.fail("delete"); err != nil {
		return err
	}
	o, err := w.find(target.Kind, target.Namespace, target.Name)
	if err != nil {
		return err
	}
	if opts.Preconditions == nil || opts.Preconditions.UID == nil || opts.Preconditions.ResourceVersion == nil {
		w.breach("%s is deleted without preconditions", target)
	} else if *opts.Preconditions.UID != o.UID || *opts.Preconditions.ResourceVersion != o.ResourceVersion {
		return apierrors.NewConflict(target.Kind.Resource.GroupResource(), target.Name, fmt.Errorf("precondition"))
	}
	w.judge(o)
	w.writes++
	w.erase(o, *opts.PropagationPolicy)
	return nil
}

// judge notes each promise that the deletion of o breaks.
func (w *world) judge(o *Object) {
	if o.Deleting {
		w.breach("%s is deleted though it is being deleted already", o)
	}
	if len(o.Owners) == 0 {
		w.breach("%s is deleted though it names no owner", o)
	}
	for _, r := range o.Owners {
		if state := w.ownerState(*o, r); state != OwnerAbsent && state != OwnerDeletingDependents {
			w.breach("%s is deleted though its owner %s %s is in state %d", o, r.Kind, r.UID, state)
		}
		if by := w.orphaned[r.UID]; slices.Contains(by.dependents, o.UID) && r.Name == by.owner.Name && r.Kind == by.owner.Kind.Kind {
			w.breach("%s is deleted though its owner %s orphaned it: names %v, state %d, owner now %+v", o, r.UID, o.Owners, w.ownerState(*o, r), w.objects[r.UID])
		}
	}
}

func (w *world) patch(_ context.Context, target Object, ops []op) error {
	if err := w.fail("patch"); err != nil {
		return err
	}
	o, err := w.find(target.Kind, target.Namespace, target.Name)
	if err != nil {
		return err
	}
	body, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	after, ok := applyJSONPatch(*o, body)
	if !ok {
		return apierrors.NewInvalid(schema.GroupKind{Kind: o.Kind.Kind}, o.Name, nil)
	}
	w.writes++
	*o = after
	w.changed(o)
	return nil
}

// applyJSONPatch knows the three operations and the paths that this loop uses.
func applyJSONPatch(o Object, body []byte) (Object, bool) {
	var ops []patchOp
	if err := json.Unmarshal(body, &ops); err != nil {
		return o, false
	}
	o.Owners, o.Finalizers = slices.Clone(o.Owners), slices.Clone(o.Finalizers)
	for _, p := range ops {
		at := strings.Split(strings.TrimPrefix(p.Path, "/metadata/"), "/")
		ok := false
		switch at[0] {
		case "uid":
			ok = p.Op == "test" && p.Value == string(o.UID)
		case "finalizers":
			ok = p.onFinalizer(&o, at[1])
		case "ownerReferences":
			ok = p.onReference(&o, at[1], at[2:]...)
		}
		if !ok {
			return o, false
		}
	}
	return o, true
}

type patchOp struct {
	Op, Path string
	Value    any
}

func (p patchOp) onFinalizer(o *Object, index string) bool {
	i, err := strconv.Atoi(index)
	if err != nil || i >= len(o.Finalizers) {
		return false
	}
	if p.Op == "remove" {
		o.Finalizers = slices.Delete(o.Finalizers, i, i+1)
		return true
	}
	return p.Op == "test" && o.Finalizers[i] == p.Value
}

func (p patchOp) onReference(o *Object, index string, field ...string) bool {
	i, err := strconv.Atoi(index)
	if err != nil || i >= len(o.Owners) {
		return false
	}
	switch p.Op + " " + strings.Join(field, "/") {
	case "remove ":
		o.Owners = slices.Delete(o.Owners, i, i+1)
		return true
	case "test uid":
		return string(o.Owners[i].UID) == p.Value
	case "test name":
		return o.Owners[i].Name == p.Value
	case "replace blockOwnerDeletion":
		v, isBool := p.Value.(bool)
		o.Owners[i].BlockOwnerDeletion = &v
		return isBool
	}
	return false
}

// run is one life of the loop in the world: its graph, its queue, and how far
// each watch has come.
type run struct {
	*world
	c      *controller
	clock  *clocktesting.FakeClock
	kindOf map[schema.GroupVersionResource]*Kind
	cursor map[schema.GroupVersionResource]int
	queue  []string
	later  map[string]bool // due after a wait
	events *record.FakeRecorder
}

func (w *world) start() *run {
	r := &run{
		world: w, clock: clocktesting.NewFakeClock(now), kindOf: map[schema.GroupVersionResource]*Kind{},
		cursor: map[schema.GroupVersionResource]int{}, later: map[string]bool{}, events: record.NewFakeRecorder(1000),
	}
	r.c = newController(r.clock, slog.New(slog.DiscardHandler), r.events, w)
	r.c.owners.setCatalog(w.catalog())
	r.c.dropsAtOnce = 1 // so that a seed always meets the same faults
	r.c.enqueue = func(key string) {
		if !slices.Contains(r.queue, key) {
			r.queue = append(r.queue, key)
		}
	}
	r.c.enqueueAt = func(key string, _ time.Time) { r.later[key] = true }
	for _, kind := range w.kinds {
		r.kindOf[kind.Resource] = r.c.graph.watch(kind, r.clock.Now())
		r.cursor[kind.Resource] = -1
	}
	return r
}

// deliver moves the watch of one kind on by one change, the first time by a full
// list. It says whether there was anything to deliver.
func (r *run) deliver(kind Kind) bool {
	at := r.cursor[kind.Resource]
	f := &feed{controller: r.c, kind: r.kindOf[kind.Resource]}
	if at < 0 {
		var all []any
		for _, o := range r.sorted() {
			if o.Kind == kind {
				all = append(all, metadataFor(*o))
			}
		}
		r.cursor[kind.Resource] = len(r.log[kind.Resource])
		must(f.Replace(all, ""))
		return true
	}
	if at >= len(r.log[kind.Resource]) {
		return false
	}
	next := r.log[kind.Resource][at]
	r.cursor[kind.Resource]++
	if next.gone {
		must(f.Delete(metadataFor(next.obj)))
	} else {
		must(f.Update(metadataFor(next.obj)))
	}
	return true
}

func metadataFor(o Object) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
		OwnerReferences: o.Owners, Finalizers: o.Finalizers,
	}}
	if o.Deleting {
		m.DeletionTimestamp = &metav1.Time{Time: now}
	}
	return m
}

// work syncs the i-th key in line. A failed one goes back in line.
func (r *run) work(i int) {
	key := r.queue[i]
	r.queue = slices.Delete(r.queue, i, i+1)
	recheck, err := r.c.Sync(context.Background(), key)
	switch {
	case err != nil:
		r.c.enqueue(key)
	case !recheck.IsZero():
		r.later[key] = true
	}
}

// pass lets the waits end.
func (r *run) pass() {
	r.clock.Step(unseenRecheck)
	for key := range r.later {
		r.c.enqueue(key)
	}
	slices.Sort(r.queue)
	clear(r.later)
}

// rest delivers and works until waiting changes nothing any more. It says how
// many writes that took, and whether it came to rest at all.
func (r *run) rest() (writes int, isAtRest bool) {
	before := r.writes
	for quiet, steps := 0, 0; quiet < 3; quiet++ {
		last := r.writes
		for r.deliverAll() || len(r.queue) > 0 {
			if len(r.queue) > 0 {
				r.work(0)
			}
			if steps++; steps > 20000 {
				return r.writes - before, false
			}
		}
		if r.writes != last {
			quiet = 0
		}
		r.pass()
	}
	return r.writes - before, true
}

func (r *run) deliverAll() bool {
	moved := false
	for _, kind := range r.kinds {
		for r.deliver(kind) {
			moved = true
		}
	}
	return moved
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
