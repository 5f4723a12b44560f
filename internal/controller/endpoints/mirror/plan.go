package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	endpointsliceutil "k8s.io/endpointslice/util"
	packing "k8s.io/kubernetes/pkg/api/v1/endpoints"
	"k8s.io/kubernetes/pkg/apis/discovery/validation"
)

const (
	// managedBy is upstream's name: other clients know slices by it.
	managedBy = "endpointslicemirroring-controller.k8s.io"
	// most is how many addresses of a subset are mirrored.
	most = 1000
)

// Observed is what one plan is made from. Nothing in it is changed by plan.
type Observed struct {
	// Endpoints and Service are nil when there are none of the key's name.
	Endpoints *v1.Endpoints
	Service   *v1.Service
	// Slices are this loop's of that Service, in any order.
	Slices []*discovery.EndpointSlice
}

// Plan is what to do, in order, and what to say.
type Plan struct {
	Actions []Action
	Notes   []Note
}

// Note becomes a warning event of the Endpoints.
type Note struct{ Reason, Message string }

// Action is one of Create, Update and Delete.
type Action interface{ isAction() }

// Create makes a slice.
type Create struct {
	Slice *discovery.EndpointSlice
	Why   string
}

// Update replaces a slice, if it is still the observed one.
type Update struct {
	Slice *discovery.EndpointSlice
	Why   string
}

// Delete removes a slice, if it is still the observed one.
type Delete struct {
	Slice *discovery.EndpointSlice
	Why   string
}

func (Create) isAction() {}
func (Update) isAction() {}
func (Delete) isAction() {}

// isMirrored says whether the Endpoints are to be seen as slices.
func isMirrored(o Observed) bool {
	if o.Endpoints == nil || o.Service == nil || o.Service.Spec.Selector != nil {
		return false
	}
	return isForMirroring(o.Endpoints)
}

func isForMirroring(e *v1.Endpoints) bool {
	_, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	return !lock && e.Labels[discovery.LabelSkipMirror] != "true"
}

// plan decides. The state table in doc.go is its contents.
func plan(o Observed) Plan {
	have := slices.SortedFunc(slices.Values(o.Slices), func(a, b *discovery.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	if !isMirrored(o) {
		return Plan{Actions: deleteAll(have, "nothing is to be mirrored")}
	}
	wanted, notes := slicesFor(o.Endpoints)
	p := Plan{Notes: notes}
	var missing []*discovery.EndpointSlice
	for _, want := range wanted {
		i := slices.IndexFunc(have, func(s *discovery.EndpointSlice) bool { return kindOf(s) == kindOf(want) })
		if i < 0 {
			missing = append(missing, want)
			continue
		}
		if !isSame(have[i], want) {
			p.Actions = append(p.Actions, Update{replaced(have[i], want), "the Endpoints are others"})
		}
		have = slices.Delete(have, i, i+1)
	}
	// What is left is not wanted: it becomes what is missing, where the family fits.
	for _, want := range missing {
		i := slices.IndexFunc(have, func(s *discovery.EndpointSlice) bool { return s.AddressType == want.AddressType })
		switch {
		case i >= 0:
			p.Actions = append(p.Actions, Update{replaced(have[i], want), "the Endpoints' ports are others"})
			have = slices.Delete(have, i, i+1)
		case o.Endpoints.DeletionTimestamp == nil:
			p.Actions = append(p.Actions, Create{want, "the Endpoints have no such slice"})
		}
	}
	p.Actions = append(p.Actions, deleteAll(have, "the Endpoints have no such subset")...)
	return p
}

func deleteAll(have []*discovery.EndpointSlice, why string) []Action {
	var actions []Action
	for _, slice := range have {
		actions = append(actions, Delete{slice, why})
	}
	return actions
}

// kindOf is what slices have in common that hold one subset's addresses of one family.
func kindOf(s *discovery.EndpointSlice) string {
	return fmt.Sprint(s.AddressType, " ", endpointsliceutil.NewPortMapKey(slices.Clone(s.Ports)))
}

// replaced is a slice with another's content.
func replaced(have, want *discovery.EndpointSlice) *discovery.EndpointSlice {
	next := want.DeepCopy()
	next.ObjectMeta = *have.ObjectMeta.DeepCopy()
	next.Labels, next.Annotations, next.OwnerReferences = want.Labels, want.Annotations, want.OwnerReferences
	return next
}

func isSame(have, want *discovery.EndpointSlice) bool {
	return apiequality.Semantic.DeepEqual(sorted(have.Endpoints), sorted(want.Endpoints)) &&
		maps.Equal(have.Labels, want.Labels) && maps.Equal(have.Annotations, want.Annotations) &&
		apiequality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences)
}

func sorted(endpoints []discovery.Endpoint) []discovery.Endpoint {
	return slices.SortedFunc(slices.Values(endpoints), func(a, b discovery.Endpoint) int { return slices.Compare(a.Addresses, b.Addresses) })
}

// slicesFor are the slices that Endpoints should have, sorted.
func slicesFor(e *v1.Endpoints) ([]*discovery.EndpointSlice, []Note) {
	var all []*discovery.EndpointSlice
	invalid, skipped := 0, 0
	for _, subset := range packing.RepackSubsets(e.Subsets) {
		byFamily := map[discovery.AddressType]*discovery.EndpointSlice{}
		added := 0
		add := func(addresses []v1.EndpointAddress, ready bool) {
			for _, address := range addresses {
				endpoint, family, ok := endpointOf(address, ready)
				switch {
				case added >= most:
					skipped++
					continue
				case !ok:
					invalid++
					continue
				}
				if byFamily[family] == nil {
					byFamily[family] = emptySlice(e, subset.Ports, family)
				}
				byFamily[family].Endpoints = append(byFamily[family].Endpoints, endpoint)
				added++
			}
		}
		add(subset.Addresses, true)
		add(subset.NotReadyAddresses, false)
		for _, family := range slices.Sorted(maps.Keys(byFamily)) {
			all = append(all, byFamily[family])
		}
	}
	var notes []Note
	if invalid > 0 {
		notes = append(notes, Note{"InvalidIPAddress", fmt.Sprintf("Skipped %d invalid IP addresses when mirroring to EndpointSlices", invalid)})
	}
	if skipped > 0 {
		notes = append(notes, Note{"TooManyAddressesToMirror", fmt.Sprintf(
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", most, skipped+invalid)})
	}
	return all, notes
}

func endpointOf(a v1.EndpointAddress, ready bool) (discovery.Endpoint, discovery.AddressType, bool) {
	ip, err := netip.ParseAddr(a.IP)
	if err != nil {
		return discovery.Endpoint{}, "", false
	}
	family := discovery.AddressTypeIPv4
	if ip = ip.Unmap(); ip.Is6() {
		family = discovery.AddressTypeIPv6
	}
	e := discovery.Endpoint{Addresses: []string{ip.String()}, Conditions: discovery.EndpointConditions{Ready: &ready}, TargetRef: a.TargetRef, NodeName: a.NodeName}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	return e, family, true
}

// emptySlice has all but addresses.
func emptySlice(e *v1.Endpoints, ports []v1.EndpointPort, family discovery.AddressType) *discovery.EndpointSlice {
	slice := &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, GenerateName: prefixFor(e.Name), Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, v1.SchemeGroupVersion.WithKind("Endpoints"))},
		},
		AddressType: family,
	}
	maps.Copy(slice.Labels, e.Labels)
	slice.Labels[discovery.LabelServiceName], slice.Labels[discovery.LabelManagedBy] = e.Name, managedBy
	maps.Copy(slice.Annotations, e.Annotations)
	delete(slice.Annotations, v1.EndpointsLastChangeTriggerTime)
	delete(slice.Annotations, v1.LastAppliedConfigAnnotation)
	for i := range ports {
		p := ports[i].DeepCopy()
		slice.Ports = append(slice.Ports, discovery.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
	}
	return slice
}

// prefixFor begins the slices' names.
func prefixFor(name string) string {
	if prefix := name + "-"; len(validation.ValidateEndpointSliceName(prefix, true)) == 0 {
		return prefix
	}
	return name
}
