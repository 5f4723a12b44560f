package garbage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var errInjected = errors.New("injected")

// worlds is how many seeds each simulation runs; a world takes about 2 ms.
const worlds = 1000

// chaos is one seeded sequence of choices.
type chaos struct {
	*rand.Rand
	w       *world
	retired []types.UID // of owners that were deleted
}

func newChaos(seed uint64) *chaos {
	return &chaos{Rand: rand.New(rand.NewPCG(seed, 0)), w: newWorld()}
}

func pick[T any](c *chaos, from ...T) T { return from[c.IntN(len(from))] }

// TestWorlds runs the loop in random worlds: users create, own, disown and
// delete, watches lag, calls fail, the loop dies and starts again. The world
// notes every broken promise as it happens; once faults stop, what should be
// gone is gone and the rest is left alone.
func TestWorlds(t *testing.T) {
	for seed := range uint64(worlds) {
		if err := runWorld(newChaos(seed)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func runWorld(c *chaos) error {
	w := c.w
	for range 15 {
		c.userCreates()
	}
	r := w.start()
	for range 30 + c.IntN(150) {
		r = c.step(r)
		if len(w.broken) > 0 {
			return fmt.Errorf("broken promise: %v", w.broken)
		}
	}
	w.fail = func(string) error { return nil }
	for range 100 {
		if _, ok := r.rest(); !ok {
			return fmt.Errorf("no rest; in line: %v", r.queue)
		}
		if !finishSlow(w, len(w.objects)) {
			break
		}
	}
	if len(w.broken) > 0 {
		return fmt.Errorf("broken promise: %v", w.broken)
	}
	if err := checkRest(w); err != nil {
		return err
	}
	if writes, _ := r.rest(); writes != 0 {
		return fmt.Errorf("%d writes at rest", writes)
	}
	return nil
}

// step lets one thing happen, and returns the loop that runs after it.
func (c *chaos) step(r *run) *run {
	switch c.IntN(10) {
	case 0, 1, 2, 3:
		r.deliver(pick(c, c.w.kinds...))
	case 4, 5, 6:
		if len(r.queue) > 0 {
			r.work(c.IntN(len(r.queue)))
		}
	case 7, 8:
		c.userActs()
	case 9:
		return c.rareStep(r)
	}
	return r
}

func (c *chaos) rareStep(r *run) *run {
	switch c.IntN(8) {
	case 0:
		left := c.IntN(3)
		c.w.fail = func(string) error {
			if left--; left == -1 {
				return errInjected
			}
			return nil
		}
	case 1:
		return c.w.start()
	default:
		r.pass()
	}
	return r
}

func (c *chaos) userActs() {
	all := c.w.sorted()
	if len(all) == 0 {
		c.userCreates()
		return
	}
	o := pick(c, all...)
	switch c.IntN(8) {
	case 0, 1, 2:
		c.userCreates()
	case 3, 4:
		c.retired = append(c.retired, o.UID)
		c.w.erase(o, pick[metav1.DeletionPropagation](c, "Background", "Foreground", "Orphan"))
	case 5:
		added := c.drawOwners(o.Namespace)
		for _, r := range added {
			delete(c.w.orphaned, r.UID) // named anew: what was promised before no longer holds
		}
		o.Owners = append(slices.Clone(o.Owners), added...)
		c.w.changed(o)
	case 6:
		if len(o.Owners) > 0 {
			o.Owners = slices.Delete(slices.Clone(o.Owners), 0, 1)
			c.w.changed(o)
		}
	case 7:
		finishSlow(c.w, 1)
	}
}

func (c *chaos) userCreates() {
	kind := pick(c, c.w.kinds...)
	namespace := ""
	if kind.Namespaced {
		namespace = pick(c, "shop", "shop", "shop", "bank")
	}
	name := pick(c, "a", "b", "c", "d", "e", "f", "slow-a", "slow-b")
	if c.w.named(kind, namespace, name) == nil {
		c.w.create(kind, namespace, name, c.drawOwners(namespace)...)
	}
}

// drawOwners draws right references mostly, and of the wrong ones each sort: an
// owner that was, one in another namespace, one of a kind that nobody serves, one
// by a wrong name.
func (c *chaos) drawOwners(namespace string) []metav1.OwnerReference {
	var refs []metav1.OwnerReference
	for range pick(c, 0, 1, 1, 1, 2, 3) {
		all := c.w.sorted()
		if len(all) == 0 {
			break
		}
		o := pick(c, all...)
		r := ref(o.Kind, o.Name, o.UID)
		switch c.IntN(20) {
		case 0:
			if len(c.retired) > 0 {
				r.UID = pick(c, c.retired...)
			}
		case 1:
			r.Name += "-not"
		case 2:
			r.Kind = "Widget"
		case 3: // whatever its namespace
		default:
			if o.Namespace != namespace && o.Kind.Namespaced {
				continue
			}
		}
		if c.IntN(2) == 0 {
			yes := true
			r.BlockOwnerDeletion = &yes
		}
		refs = append(refs, r)
	}
	return refs
}

// finishSlow ends the grace of up to n objects that take their time to go.
func finishSlow(w *world, n int) bool {
	finished := false
	for _, o := range w.sorted() {
		if i := slices.Index(o.Finalizers, "test/grace"); i >= 0 && n > 0 {
			o.Finalizers = slices.Delete(slices.Clone(o.Finalizers), i, i+1)
			w.changed(o)
			finished = true
			n--
		}
	}
	return finished
}

func checkRest(w *world) error {
	for _, o := range w.sorted() {
		if o.Deleting {
			return fmt.Errorf("%s is stuck in deletion: %v, dependents %v", o, o.Finalizers, w.dependentsOf(o.UID))
		}
		by := map[OwnerState]int{}
		for _, r := range o.Owners {
			by[w.ownerState(*o, r)]++
		}
		keepers := by[OwnerLives] + by[OwnerUnknown] + by[OwnerOutOfReach]
		switch {
		case len(o.Owners) == 0:
		case keepers == 0:
			return fmt.Errorf("%s has no owner left and is still there: %v", o, o.Owners)
		case by[OwnerAbsent]+by[OwnerDeletingDependents] > 0:
			return fmt.Errorf("%s keeps a dangling reference: %v", o, o.Owners)
		}
	}
	return nil
}

// TestForegroundOwnerGoesLast holds for every dependent that the watch had shown.
func TestForegroundOwnerGoesLast(t *testing.T) {
	for seed := range uint64(worlds / 5) {
		if err := runForeground(newChaos(seed)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func runForeground(c *chaos) error {
	w := c.w
	root := w.create(deployments, "shop", "root")
	for i := range 1 + c.IntN(4) {
		rs := w.create(replicaSets, "shop", fmt.Sprintf("m%d", i), blockingRef(deployments, "root", root.UID))
		for j := range c.IntN(5) {
			w.create(pods, "shop", fmt.Sprintf("slow-%d-%d", i, j), blockingRef(replicaSets, rs.Name, rs.UID))
		}
	}
	r := w.start()
	r.rest()
	w.erase(root, metav1.DeletePropagationForeground)
	for range 5000 {
		switch c.IntN(3) {
		case 0:
			r.deliver(pick(c, w.kinds...))
		case 1:
			if len(r.queue) > 0 {
				r.work(c.IntN(len(r.queue)))
			}
		case 2:
			finishSlow(w, 1)
		}
		for _, o := range w.sorted() {
			for _, owner := range o.Owners {
				if w.objects[owner.UID] == nil {
					return fmt.Errorf("%s outlived its owner %s, which it blocks", o, owner.UID)
				}
			}
		}
		if len(w.objects) == 0 {
			return nil
		}
	}
	return fmt.Errorf("left: %v", w.sorted())
}

// TestPlanCondemnsOnlyTheOwnerless is about the plan alone, for any observation.
func TestPlanCondemnsOnlyTheOwnerless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := rapid.SliceOfN(rapid.SampledFrom([]OwnerState{OwnerLives, OwnerAbsent, OwnerDeletingDependents, OwnerUnknown, OwnerOutOfReach}), 0, 4).Draw(t, "owners")
		o := webPod(func(o *Object) {
			o.Owners = nil
			o.Deleting = rapid.Bool().Draw(t, "deleting")
			o.Finalizers = rapid.SliceOfN(rapid.SampledFrom([]string{"orphan", "foregroundDeletion", "x"}), 0, 2).Draw(t, "finalizers")
			for i := range states {
				o.Owners = append(o.Owners, ref(replicaSets, fmt.Sprint(i), types.UID(fmt.Sprint(i))))
			}
		})
		observed := owned(o, states...)
		for i := range rapid.IntRange(0, 3).Draw(t, "dependents") {
			observed.Dependents = append(observed.Dependents, Dependent{
				Object: Object{UID: types.UID(fmt.Sprint("dep", i))}, Blocking: rapid.Bool().Draw(t, "blocking"), InCircle: rapid.Bool().Draw(t, "circle")})
		}
		for _, action := range plan(observed, now).Actions {
			if trouble := harm(action, o, states, observed.Dependents); trouble != "" {
				t.Fatalf("%s: %+v, owners %v, dependents %+v", trouble, o, states, observed.Dependents)
			}
		}
	})
}

// harm says what is wrong with an action on o, if anything.
func harm(action Action, o Object, states []OwnerState, dependents []Dependent) string {
	isOver := func(s OwnerState) bool { return s == OwnerAbsent || s == OwnerDeletingDependents }
	isKept := slices.ContainsFunc(states, func(s OwnerState) bool { return !isOver(s) })
	switch a := action.(type) {
	case Delete:
		if o.Deleting || len(states) == 0 || isKept {
			return "deletes it"
		}
	case Release:
		isBlocked := slices.ContainsFunc(dependents, func(d Dependent) bool { return d.Blocking })
		if !o.Deleting || a.Finalizer == metav1.FinalizerDeleteDependents && isBlocked {
			return "releases it"
		}
	case DropOwners:
		for _, dropped := range a.Refs {
			i := slices.IndexFunc(o.Owners, func(r metav1.OwnerReference) bool { return r.UID == dropped.UID })
			if !o.Deleting && !isOver(states[i]) {
				return "drops " + string(dropped.UID)
			}
		}
	}
	return ""
}
