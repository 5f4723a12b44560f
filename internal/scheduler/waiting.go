package scheduler

import (
	"container/heap"
	"slices"
)

// waiting holds the Pods that fit nowhere, grouped by what they ask for, so that
// a change on a node is checked once per kind of Pod and wakes only as many as
// can use it. The promise: while some node fits a group, the first Pod of that
// group is in the loop's queue or being worked on. Every change that can make
// room calls [waiting.roomOn] or, when a member leaves, takes the next one.
type waiting struct {
	groups map[string]*group // by shape
	shapes map[string]string // Pod key → shape
	asked  uint64
}

type group struct {
	demand  *Demand
	members map[string]rank
	order   rankedHeap // may still hold keys that have left

	// refusal is the last one made for this shape, valid while the cluster's
	// version is the same.
	refusal *Refusal
	version uint64
}

func newWaiting() *waiting {
	return &waiting{groups: map[string]*group{}, shapes: map[string]string{}}
}

// park adds the Pod with key, refused at version.
func (w *waiting) park(key, shape string, d *Demand, r *Refusal, version uint64) {
	if old, ok := w.shapes[key]; ok && old != shape {
		w.leave(key)
	}
	g := w.groups[shape]
	if g == nil {
		g = &group{members: map[string]rank{}}
		w.groups[shape] = g
	}
	g.demand, g.refusal, g.version = d, r, version
	if _, in := g.members[key]; in {
		return
	}
	w.asked++
	at := rankOf(d.pod, w.asked)
	g.members[key] = at
	heap.Push(&g.order, ranked{key: key, rank: at})
	w.shapes[key] = shape
}

// leave takes the Pod with key out and returns the key that is now first in its
// group and has to be tried, or "".
func (w *waiting) leave(key string) string {
	shape, ok := w.shapes[key]
	if !ok {
		return ""
	}
	g := w.groups[shape]
	delete(w.shapes, key)
	delete(g.members, key)
	if len(g.members) == 0 {
		delete(w.groups, shape)
		return ""
	}
	return g.first()
}

// roomOn returns the first key of each group that fits the node now, sorted.
func (w *waiting) roomOn(c *Cluster, node string) []string {
	var keys []string
	for _, g := range w.groups {
		if c.canRunOn(node, g.demand) {
			keys = append(keys, g.first())
		}
	}
	slices.Sort(keys)
	return keys
}

// everyone returns all keys, sorted.
func (w *waiting) everyone() []string {
	keys := make([]string, 0, len(w.shapes))
	for key := range w.shapes {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// refusalFor returns the refusal that a plan for this shape would make, if it is
// known without one.
func (w *waiting) refusalFor(shape string, version uint64) *Refusal {
	if g := w.groups[shape]; g != nil && g.version == version {
		return g.refusal
	}
	return nil
}

func (g *group) first() string {
	for len(g.order) > 0 {
		head := g.order[0]
		if at, in := g.members[head.key]; in && at == head.rank {
			return head.key
		}
		heap.Pop(&g.order)
	}
	return ""
}
