package garbage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// errNotServed says that the server has no such path, which is no statement
// about an object: a CRD being established or an API that is away answers so.
var errNotServed = errors.New("kind is not served")

// absentMemory is how many verified absences are remembered, so that the end of
// an owner of a thousand Pods costs one read, not a thousand. A UID never comes
// back, so an absence never turns wrong.
const absentMemory = 4096

// listsAtOnce bounds the lists that confirm the dependents of one owner; a
// driven loop makes them one by one.
const listsAtOnce = 16

// owners answers what became of an owner.
type owners struct {
	server server
	absent *lru.Cache // coordinates → nothing

	mu      sync.RWMutex
	catalog catalog
}

// coordinates are what one live read is about.
type coordinates struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

func newOwners(s server) *owners {
	return &owners{server: s, absent: lru.New(absentMemory)}
}

func (o *owners) setCatalog(c catalog) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.catalog = c
}

func (o *owners) getCatalog() catalog {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.catalog
}

// verify reads the owner that ref, found on an object in namespace, names.
func (o *owners) verify(ctx context.Context, ref metav1.OwnerReference, namespace string) (OwnerState, error) {
	kind, isServed := o.getCatalog().kindOf(ref.APIVersion, ref.Kind)
	switch {
	case !isServed:
		return OwnerUnknown, nil
	case kind.Namespaced && namespace == "":
		return OwnerOutOfReach, nil
	case !kind.Namespaced:
		namespace = ""
	}
	at := coordinates{ref.APIVersion, ref.Kind, namespace, ref.Name, ref.UID}
	if _, known := o.absent.Get(at); known {
		return OwnerAbsent, nil
	}
	owner, err := o.server.get(ctx, kind, namespace, ref.Name)
	switch {
	case errors.Is(err, errNotServed):
		return OwnerUnknown, nil
	case apierrors.IsNotFound(err), err == nil && owner.UID != ref.UID:
		o.absent.Add(at, nil)
		return OwnerAbsent, nil
	case err != nil:
		return OwnerUnknown, fmt.Errorf("read owner %s %s in namespace %q: %w", ref.Kind, ref.Name, namespace, err)
	case owner.isDeletingDependents():
		return OwnerDeletingDependents, nil
	default:
		return OwnerLives, nil
	}
}

// observe collects what the plan for uid rests on. With fresh the subject itself
// is read from the server; otherwise the graph's word is taken, which the
// precondition of every write holds to account.
func (c *controller) observe(ctx context.Context, uid types.UID, fresh bool) (Observed, error) {
	s := c.graph.sight(uid, c.clock.Now())
	if s.object == nil {
		return c.observeUnseen(ctx, uid, s)
	}
	o := Observed{Object: s.object, Dependents: s.dependents, CompleteAt: s.completeAt}
	if fresh {
		live, err := c.owners.server.get(ctx, s.object.Kind, s.object.Namespace, s.object.Name)
		switch {
		case apierrors.IsNotFound(err), errors.Is(err, errNotServed), err == nil && live.UID != uid:
			// Gone. The watch brings the news, and wakes whom it concerns.
			return Observed{}, nil
		case err != nil:
			return Observed{}, fmt.Errorf("read %s: %w", s.object, err)
		}
		o.Object = &live
	}
	if o.Object.Deleting { // its owners decide nothing any more
		if o.Object.isOrphaning() && o.CompleteAt.IsZero() {
			var err error
			o.Dependents, err = c.confirmDependents(ctx, *o.Object, o.Dependents)
			return o, err
		}
		return o, nil
	}
	for _, ref := range o.Object.Owners {
		seen := c.graph.owner(ref, o.Object.Namespace)
		owner := Owner{Ref: ref, State: OwnerLives, Elsewhere: seen.elsewhere}
		if !seen.lives {
			var err error
			if owner.State, err = c.owners.verify(ctx, ref, o.Object.Namespace); err != nil {
				return Observed{}, err
			}
		}
		o.Owners = append(o.Owners, owner)
	}
	return o, nil
}

// confirmDependents adds to known the dependents of owner that only the server
// shows so far. Each kind has a watch of its own, and one that lags by a moment
// must not cost a dependent its life: who is missed here is collected as garbage
// once the owner has gone. Upstream takes that risk. A kind that does not answer
// holds the owner back, unless it is not served at all.
func (c *controller) confirmDependents(ctx context.Context, owner Object, known []Dependent) ([]Dependent, error) {
	kinds := c.graph.watchedKinds()
	found := make([][]Object, len(kinds))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.listsAtOnce)
	for i, kind := range kinds {
		if !kind.Namespaced && owner.Namespace != "" {
			continue // a cluster-scoped object cannot have a namespaced owner
		}
		group.Go(func() (err error) {
			found[i], err = c.owners.server.list(ctx, kind, owner.Namespace)
			if err != nil && !errors.Is(err, errNotServed) {
				return fmt.Errorf("list %s for dependents of %s: %w", kind.Resource.Resource, owner, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	byUID := map[types.UID]Dependent{}
	for _, dep := range known {
		byUID[dep.UID] = dep
	}
	for _, obj := range slices.Concat(found...) {
		if slices.ContainsFunc(obj.Owners, func(ref metav1.OwnerReference) bool { return ref.UID == owner.UID }) {
			byUID[obj.UID] = Dependent{Object: obj}
		}
	}
	return slices.SortedFunc(maps.Values(byUID), func(a, b Dependent) int { return cmp.Compare(a.UID, b.UID) }), nil
}

// observeUnseen verifies each of the ways in which dependents name an owner that
// no watch has shown. They need not agree: a reference can be wrong.
func (c *controller) observeUnseen(ctx context.Context, uid types.UID, s sighting) (Observed, error) {
	o := Observed{CompleteAt: s.completeAt}
	for _, dep := range s.dependents {
		for _, ref := range dep.Owners {
			if ref.UID != uid {
				continue
			}
			at := metav1.OwnerReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: uid}
			i := slices.IndexFunc(o.Claims, func(c Claim) bool { return c.Namespace == dep.Namespace && c.Ref == at })
			if i < 0 {
				i = len(o.Claims)
				o.Claims = append(o.Claims, Claim{Namespace: dep.Namespace, Ref: at})
			}
			o.Claims[i].Dependents = append(o.Claims[i].Dependents, dep.UID)
		}
	}
	for i := range o.Claims {
		var err error
		if o.Claims[i].State, err = c.owners.verify(ctx, o.Claims[i].Ref, o.Claims[i].Namespace); err != nil {
			return Observed{}, err
		}
	}
	slices.SortFunc(o.Claims, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Ref.APIVersion, b.Ref.APIVersion),
			cmp.Compare(a.Ref.Kind, b.Ref.Kind), cmp.Compare(a.Ref.Name, b.Ref.Name))
	})
	return o, nil
}
