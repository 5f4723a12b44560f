package view

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Writes is one loop's memory of its own writes, by the key they were made for.
// It is safe for concurrent use.
type Writes struct {
	stores map[string]cache.Store
	mu     sync.Mutex
	byKey  map[string]*pending
}

type pending struct {
	newest  map[string]string               // resource → resourceVersion
	deleted map[string]map[types.UID]string // resource → UID → store key
}

// NewWrites takes the informer store of every resource the loop writes and reads
// back, by lower-case plural ("pods").
func NewWrites(stores map[string]cache.Store) *Writes {
	return &Writes{stores: stores, byKey: map[string]*pending{}}
}

func (w *Writes) of(key string) *pending {
	p := w.byKey[key]
	if p == nil {
		p = &pending{newest: map[string]string{}, deleted: map[string]map[types.UID]string{}}
		w.byKey[key] = p
	}
	return p
}

// Wrote notes that the loop created or updated obj, as the server answered it,
// while it worked on key.
func (w *Writes) Wrote(key, resource string, obj metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.of(key)
	if old, ok := p.newest[resource]; !ok || older(old, obj.GetResourceVersion()) {
		p.newest[resource] = obj.GetResourceVersion()
	}
}

// Deleted notes that the loop deleted obj while it worked on key. The cache has
// caught up once obj is gone from it, or carries a deletion timestamp.
func (w *Writes) Deleted(key, resource string, obj metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.of(key)
	if p.deleted[resource] == nil {
		p.deleted[resource] = map[types.UID]string{}
	}
	p.deleted[resource][obj.GetUID()] = cache.MetaObjectToName(obj).String()
}

// CaughtUp says whether the caches have seen every write noted for key, and
// forgets those they have.
func (w *Writes) CaughtUp(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.byKey[key]
	if p == nil {
		return true
	}
	for resource, wrote := range p.newest {
		if older(w.stores[resource].LastStoreSyncResourceVersion(), wrote) {
			return false
		}
		delete(p.newest, resource)
	}
	for resource, gone := range p.deleted {
		for uid, storeKey := range gone {
			if stillLive(w.stores[resource], storeKey, uid) {
				return false
			}
			delete(gone, uid)
		}
	}
	delete(w.byKey, key)
	return true
}

// Forget drops what is noted for key, for an object that no longer exists.
func (w *Writes) Forget(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byKey, key)
}

func stillLive(store cache.Store, storeKey string, uid types.UID) bool {
	cached, ok, err := store.GetByKey(storeKey)
	if err != nil || !ok {
		return false
	}
	obj, err := meta.Accessor(cached)
	if err != nil {
		return false
	}
	return obj.GetUID() == uid && obj.GetDeletionTimestamp() == nil
}

// older says whether resourceVersion a comes before b. What cannot be compared
// (an empty version from a store that has not listed yet) is older.
func older(a, b string) bool {
	if a == "" {
		return b != ""
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
