package garbage

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is one served kind in one version.
type Kind struct {
	Resource   schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// APIVersion is the form that owner references use: "v1", "apps/v1".
func (k Kind) APIVersion() string { return k.Resource.GroupVersion().String() }

// catalog is what discovery says the server serves.
type catalog struct {
	// served holds every version, because an owner reference may name any.
	served map[schema.GroupVersionKind]Kind
	// watched is the preferred version of each kind that can be deleted, listed
	// and watched, in a fixed order.
	watched []Kind
}

// ignored kinds come and go in bulk and never have or are owners. Upstream
// ignores the same.
var ignored = map[schema.GroupResource]bool{
	{Group: "", Resource: "events"}:              true,
	{Group: "events.k8s.io", Resource: "events"}: true,
}

func newCatalog(groups []*metav1.APIGroup, lists []*metav1.APIResourceList) catalog {
	c := catalog{served: map[schema.GroupVersionKind]Kind{}}
	preferred := preferredVersions(groups)
	chosen := map[schema.GroupResource]Kind{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // such a version cannot be named by a reference either
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") {
				continue // subresource
			}
			kind := Kind{Resource: gv.WithResource(r.Name), Kind: r.Kind, Namespaced: r.Namespaced}
			c.served[gv.WithKind(r.Kind)] = kind
			gr := kind.Resource.GroupResource()
			if ignored[gr] || !isCollectable(r.Verbs) {
				continue
			}
			if _, ok := chosen[gr]; !ok || preferred[gv.Group] == gv.Version {
				chosen[gr] = kind
			}
		}
	}
	for _, kind := range chosen {
		c.watched = append(c.watched, kind)
	}
	slices.SortFunc(c.watched, func(a, b Kind) int {
		return cmp.Compare(a.Resource.String(), b.Resource.String())
	})
	return c
}

func preferredVersions(groups []*metav1.APIGroup) map[string]string {
	preferred := map[string]string{}
	for _, g := range groups {
		preferred[g.Name] = g.PreferredVersion.Version
	}
	return preferred
}

func isCollectable(verbs metav1.Verbs) bool {
	return slices.Contains(verbs, "delete") && slices.Contains(verbs, "list") && slices.Contains(verbs, "watch")
}

// kindOf finds the kind that an owner reference names.
func (c catalog) kindOf(apiVersion, kind string) (Kind, bool) {
	k, ok := c.served[schema.FromAPIVersionAndKind(apiVersion, kind)]
	return k, ok
}

// withFailed adds what old knew of groups whose discovery failed this time: an
// API that does not answer has not taken its kinds away.
func (c catalog) withFailed(old catalog, failed map[schema.GroupVersion]error) catalog {
	for gvk, kind := range old.served {
		if _, isFailed := failed[gvk.GroupVersion()]; isFailed {
			c.served[gvk] = kind
		}
	}
	for _, kind := range old.watched {
		if _, isFailed := failed[kind.Resource.GroupVersion()]; isFailed && !slices.Contains(c.watched, kind) {
			c.watched = append(c.watched, kind)
		}
	}
	return c
}
