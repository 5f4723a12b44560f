package proxy

import (
	"cmp"
	"maps"
	"slices"

	"mend/internal/network/catalog"
)

// slot is a place in a set or map, which can hold one element.
type slot struct {
	family Family
	set    string
	key    string
	end    string
}

func (e Element) slot() slot { return slot{e.Family, e.Set, e.Key, e.End} }

// claim is one Service's wish for a slot.
type claim struct {
	by    catalog.Key
	value string
}

// ledger knows what the kernel was last given, by Service and by slot. Several Services
// may claim a slot: sets hold what they share, and in maps the first by name has it, so
// that every node decides alike.
type ledger struct {
	services map[catalog.Key]Rendering
	claims   map[slot][]claim // sorted by Service; never empty
	// classes counts the elements that need a class, by family.
	classes map[Family]map[Class]int
}

func newLedger() *ledger {
	return &ledger{services: map[catalog.Key]Rendering{}, claims: map[slot][]claim{}, classes: map[Family]map[Class]int{}}
}

// Difference is what to do in one transaction: deletions come first.
type Difference struct {
	Delete, Add []Element // sorted
	// AddClasses need a chain before the elements are added. DropClasses need theirs no
	// more once the elements are gone.
	AddClasses, DropClasses map[Family][]Class // sorted
}

func (d Difference) isEmpty() bool {
	return len(d.Delete)+len(d.Add)+len(d.AddClasses)+len(d.DropClasses) == 0
}

func compareKeys(a, b catalog.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// change replaces what Services have, and returns the difference that it makes. Its cost
// is that of the Services given, not of all.
func (l *ledger) change(to map[catalog.Key]Rendering) Difference {
	before := map[slot]held{}
	note := func(s slot) {
		if _, seen := before[s]; !seen {
			before[s] = l.value(s)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(to), compareKeys) {
		next, old := to[key], l.services[key]
		// What stays as it is needs no note: both lists are sorted.
		eachDifferent(old.Elements, next.Elements, func(e Element) { note(e.slot()); l.withdraw(key, e) },
			func(e Element) { note(e.slot()); l.enter(key, e) })
		if len(next.Elements)+len(next.UDP) == 0 && next.Health == nil {
			delete(l.services, key)
			continue
		}
		l.services[key] = next
	}
	return l.difference(before)
}

// eachDifferent walks two sorted lists and calls for what is only in one.
func eachDifferent(old, next []Element, gone, come func(Element)) {
	for len(old) > 0 || len(next) > 0 {
		switch {
		case len(old) > 0 && len(next) > 0 && old[0] == next[0]:
			old, next = old[1:], next[1:]
		case len(next) == 0 || len(old) > 0 && compareElements(old[0], next[0]) < 0:
			gone(old[0])
			old = old[1:]
		default:
			come(next[0])
			next = next[1:]
		}
	}
}

// held is what a slot holds, if anything.
type held struct {
	value string
	there bool
}

func (l *ledger) value(s slot) held {
	if claims := l.claims[s]; len(claims) > 0 {
		return held{claims[0].value, true}
	}
	return held{}
}

func (l *ledger) enter(by catalog.Key, e Element) {
	claims := l.claims[e.slot()]
	i, _ := slices.BinarySearchFunc(claims, by, func(c claim, k catalog.Key) int { return compareKeys(c.by, k) })
	l.claims[e.slot()] = slices.Insert(claims, i, claim{by, e.Value})
}

func (l *ledger) withdraw(by catalog.Key, e Element) {
	s := e.slot()
	claims := slices.DeleteFunc(l.claims[s], func(c claim) bool { return c.by == by && c.value == e.Value })
	if len(claims) == 0 {
		delete(l.claims, s)
		return
	}
	l.claims[s] = claims
}

// difference compares the slots touched with what they held.
func (l *ledger) difference(before map[slot]held) Difference {
	var d Difference
	was := map[Family]map[Class]bool{}
	for family, classes := range l.classes {
		was[family] = map[Class]bool{}
		for k := range classes {
			was[family][k] = true
		}
	}
	for s, old := range before {
		now := l.value(s)
		if old == now {
			continue
		}
		if old.there {
			d.Delete = append(d.Delete, s.element(old.value))
			l.count(s, old.value, -1)
		}
		if now.there {
			d.Add = append(d.Add, s.element(now.value))
			l.count(s, now.value, +1)
		}
	}
	slices.SortFunc(d.Delete, compareElements)
	slices.SortFunc(d.Add, compareElements)
	for family, classes := range l.classes {
		for k := range classes {
			if !was[family][k] {
				d.AddClasses = put(d.AddClasses, family, k)
			}
		}
		for k := range was[family] {
			if _, still := classes[k]; !still {
				d.DropClasses = put(d.DropClasses, family, k)
			}
		}
	}
	return d
}

func put(to map[Family][]Class, family Family, k Class) map[Family][]Class {
	if to == nil {
		to = map[Family][]Class{}
	}
	i, _ := slices.BinarySearchFunc(to[family], k, compareClasses)
	to[family] = slices.Insert(to[family], i, k)
	return to
}

func compareClasses(a, b Class) int { return cmp.Compare(a.pack(), b.pack()) }

func (s slot) element(value string) Element {
	return Element{Family: s.family, Set: s.set, Key: s.key, End: s.end, Value: value}
}

func (l *ledger) count(s slot, value string, by int) {
	if s.set != setServices && s.set != setNodePorts {
		return
	}
	k := unpackClass([]byte(value))
	if l.classes[s.family] == nil {
		l.classes[s.family] = map[Class]int{}
	}
	l.classes[s.family][k] += by
	if l.classes[s.family][k] == 0 {
		delete(l.classes[s.family], k)
	}
}

// all are the elements that the kernel should have, sorted.
func (l *ledger) all() []Element {
	out := make([]Element, 0, len(l.claims))
	for s, claims := range l.claims {
		out = append(out, s.element(claims[0].value))
	}
	slices.SortFunc(out, compareElements)
	return out
}

// classesOf are the classes in use, sorted.
func (l *ledger) classesOf(family Family) []Class {
	return slices.SortedFunc(maps.Keys(l.classes[family]), compareClasses)
}
