package catalog

import (
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func service(name, version string) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: version},
		Spec: v1.ServiceSpec{Selector: map[string]string{"app": name}}}
}

func slice(name, of, version string) *discovery.EndpointSlice {
	return &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: version,
		Labels: map[string]string{discovery.LabelServiceName: of}}}
}

func key(name string) Key { return Key{Namespace: "ns", Name: name} }

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// changed is what a follower sees, by name: how many slices, or -1 without a Service.
func changed(t *testing.T, f *Follower) (map[string]int, uint64) {
	t.Helper()
	changes, ok := f.Take()
	if !ok {
		return nil, 0
	}
	out := map[string]int{}
	for k, s := range changes.Services {
		out[k.Name] = len(s.Slices)
		if s.Object == nil {
			out[k.Name] = -1
		}
	}
	return out, changes.Version
}

func TestAFollowerSeesNothingBeforeBothListsAreIn(t *testing.T) {
	c := New()
	f := c.Follow()
	do(t, serviceStore{c}.Replace([]any{service("a", "1"), service("b", "2")}, "5"))
	if got, _ := changed(t, f); got != nil {
		t.Errorf("saw %v with no slices listed", got)
	}
	do(t, sliceStore{c}.Replace([]any{slice("a-1", "a", "3"), slice("old", "gone", "4")}, "7"))
	select {
	case <-f.Changed():
	default:
		t.Error("was not woken")
	}
	got, version := changed(t, f)
	if want := map[string]int{"a": 1, "b": 0, "gone": -1}; !maps.Equal(got, want) || version != 7 {
		t.Errorf("saw %v at %d, want %v at 7", got, version, want)
	}
	if late, _ := changed(t, c.Follow()); !maps.Equal(late, got) {
		t.Errorf("a later follower saw %v", late)
	}
}

func filled(t *testing.T) (*Catalog, *Follower) {
	t.Helper()
	c := New()
	do(t, serviceStore{c}.Replace([]any{service("a", "1"), service("b", "2")}, "2"))
	do(t, sliceStore{c}.Replace([]any{slice("a-1", "a", "3"), slice("b-1", "b", "4")}, "9"))
	f := c.Follow()
	f.Take()
	return c, f
}

func TestChanges(t *testing.T) {
	tests := []struct {
		name    string
		change  func(*Catalog) error
		want    map[string]int
		version uint64
	}{
		{"nothing", func(*Catalog) error { return nil }, nil, 0},
		{"a slice changes", func(c *Catalog) error { return sliceStore{c}.Update(slice("a-1", "a", "10")) }, map[string]int{"a": 1}, 10},
		{"a slice is added", func(c *Catalog) error { return sliceStore{c}.Add(slice("a-2", "a", "10")) }, map[string]int{"a": 2}, 10},
		{"a slice goes", func(c *Catalog) error { return sliceStore{c}.Delete(slice("a-1", "a", "10")) }, map[string]int{"a": 0}, 10},
		{"a slice moves to another Service", func(c *Catalog) error { return sliceStore{c}.Update(slice("a-1", "b", "10")) }, map[string]int{"a": 0, "b": 2}, 10},
		{"a slice loses its Service's name", func(c *Catalog) error { return sliceStore{c}.Update(slice("a-1", "", "10")) }, map[string]int{"a": 0}, 10},
		{"a Service goes and its slices stay", func(c *Catalog) error { return serviceStore{c}.Delete(service("a", "10")) }, map[string]int{"a": -1}, 9},
		{"a Service changes", func(c *Catalog) error { return serviceStore{c}.Update(service("b", "10")) }, map[string]int{"b": 1}, 9},
		{"a list without changes", func(c *Catalog) error {
			return sliceStore{c}.Replace([]any{slice("a-1", "a", "3"), slice("b-1", "b", "4")}, "30")
		}, nil, 0},
		{"a list shows what a lost watch did not", func(c *Catalog) error {
			return sliceStore{c}.Replace([]any{slice("a-1", "a", "25")}, "30")
		}, map[string]int{"a": 1, "b": 0}, 30},
		{"a list of Services lacks one", func(c *Catalog) error {
			return serviceStore{c}.Replace([]any{service("a", "1")}, "30")
		}, map[string]int{"b": -1}, 9},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, f := filled(t)
			do(t, tt.change(c))
			if got, version := changed(t, f); !maps.Equal(got, tt.want) || version != tt.version {
				t.Errorf("saw %v at %d, want %v at %d", got, version, tt.want, tt.version)
			}
			if got, _ := changed(t, f); got != nil {
				t.Errorf("saw %v again", got)
			}
		})
	}
}

func TestPutGivesBackWhatCouldNotBeUsed(t *testing.T) {
	c, f := filled(t)
	do(t, sliceStore{c}.Update(slice("a-1", "a", "10")))
	first, _ := f.Take()
	do(t, sliceStore{c}.Update(slice("b-1", "b", "11")))
	f.Put(first)
	if got, version := changed(t, f); !maps.Equal(got, map[string]int{"a": 1, "b": 1}) || version != 11 {
		t.Errorf("saw %v at %d", got, version)
	}
}

func TestAgain(t *testing.T) {
	_, f := filled(t)
	f.Again()
	changes, ok := f.Take()
	if !ok || !changes.First || len(changes.Services) != 2 {
		t.Errorf("saw %v, %v", changes, ok)
	}
}

func TestSelecting(t *testing.T) {
	c, _ := filled(t)
	none := service("none", "5")
	none.Spec.Selector = nil
	name := service("name", "6")
	name.Spec.Type, name.Spec.Selector = v1.ServiceTypeExternalName, map[string]string{"app": "a"}
	do(t, serviceStore{c}.Add(none))
	do(t, serviceStore{c}.Add(name))
	got := slices.Collect(maps.Keys(c.Selecting("ns", map[string]string{"app": "a", "x": "y"})))
	if !slices.Equal(got, []Key{key("a")}) {
		t.Errorf("selected %v, want a alone", got)
	}
	if got := c.Selecting("other", map[string]string{"app": "a"}); len(got) != 0 {
		t.Errorf("selected %v of another namespace", got)
	}
}
