package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
)

const mirrorManager = "endpointslicemirroring-controller.k8s.io"

var mirrorActions = []action{
	{8, (*world).freeService}, {12, (*world).makeEndpoints}, {12, (*world).editEndpoints}, {8, (*world).touchMirrored},
}

// freeService takes the selector off a Service: its Endpoints are for users to write.
func (w *world) freeService() bool {
	s, ok := pick(w, aService, func(s *v1.Service) bool { return undeleted(s) && s.Spec.Selector != nil })
	if ok {
		change(w.api, services, s, false, func(s *v1.Service) { s.Spec.Selector = nil })
		w.note("user takes the selector off Service %s", keyOf(s))
	}
	return ok
}

// isHandMade says whether a user keeps the Endpoints of that Service.
func isHandMade(s *v1.Service) bool { return undeleted(s) && s.Spec.Selector == nil }

func (w *world) makeEndpoints() bool {
	s, ok := pick(w, aService, func(s *v1.Service) bool { return isHandMade(s) && w.api.objects[endpointsRes][keyOf(s)] == nil })
	if !ok {
		return false
	}
	e := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}, Subsets: w.subsets()}
	w.mark(e)
	if _, err := w.api.create(endpointsRes, e); err != nil {
		return false
	}
	w.note("user creates Endpoints %s: %s", keyOf(e), endpointsText(e))
	return true
}

// subsets have ports of their own each, and addresses that no other has.
func (w *world) subsets() []v1.EndpointSubset {
	all := []v1.EndpointSubset{}
	for n, ports := range [][]v1.EndpointPort{{{Name: "web", Port: 8080, Protocol: v1.ProtocolTCP}}, {{Name: "dns", Port: 53, Protocol: v1.ProtocolUDP}}, nil} {
		subset := v1.EndpointSubset{Ports: ports}
		for i := range 3 {
			a := v1.EndpointAddress{IP: fmt.Sprintf("10.8.%d.%d", n, i+1)}
			if i == 2 {
				a.IP = fmt.Sprintf("fd08::%d", n+1)
			}
			switch w.rng.IntN(4) {
			case 0:
				subset.Addresses = append(subset.Addresses, a)
			case 1:
				subset.NotReadyAddresses = append(subset.NotReadyAddresses, a)
			}
		}
		if len(subset.Addresses)+len(subset.NotReadyAddresses) > 0 {
			all = append(all, subset)
		}
	}
	return all
}

// mark puts labels and annotations on Endpoints, some of which keep them from being
// mirrored.
func (w *world) mark(e *v1.Endpoints) {
	e.Labels, e.Annotations = map[string]string{"tier": fmt.Sprint(w.rng.IntN(2))}, nil
	switch w.rng.IntN(10) {
	case 0:
		e.Labels[discovery.LabelSkipMirror] = "true"
	case 1:
		e.Annotations = map[string]string{resourcelock.LeaderElectionRecordAnnotationKey: "{}"}
	case 2:
		e.Annotations = map[string]string{"note": "by hand"}
	}
}

func endpointsText(e *v1.Endpoints) string {
	return fmt.Sprintf("labels %v, annotations %v, %v", e.Labels, e.Annotations, texts(addressed(e)))
}

func (w *world) editEndpoints() bool {
	e, ok := pick(w, anEndpoints, func(e *v1.Endpoints) bool {
		s, ok := w.api.objects[services][keyOf(e)].(*v1.Service)
		return ok && isHandMade(s)
	})
	if !ok {
		return false
	}
	change(w.api, endpointsRes, e, false, func(e *v1.Endpoints) {
		if w.rng.IntN(2) == 0 {
			e.Subsets = w.subsets()
		} else {
			w.mark(e)
		}
	})
	w.note("user changes Endpoints %s: %s", keyOf(e), endpointsText(w.api.objects[endpointsRes][keyOf(e)].(*v1.Endpoints)))
	return true
}

func isMirrorSlice(slice *discovery.EndpointSlice) bool {
	return slice.Labels[discovery.LabelManagedBy] == mirrorManager
}

// touchMirrored lets somebody delete or change what the loop wrote.
func (w *world) touchMirrored() bool {
	slice, ok := pick(w, aSlice, isMirrorSlice)
	if !ok {
		return false
	}
	w.slicesKnown = false
	how := w.rng.IntN(4)
	w.note("user deletes or changes mirrored EndpointSlice %s (%d: deletes, addresses, Service, manager)", keyOf(slice), how)
	if how == 0 {
		must(w.api.delete(endpointSlices, keyOf(slice), metav1.DeleteOptions{}))
		return true
	}
	change(w.api, endpointSlices, slice, false, func(slice *discovery.EndpointSlice) {
		slice.Labels = maps.Clone(slice.Labels)
		switch how {
		case 1:
			slice.Endpoints = nil
		case 2:
			slice.Labels[discovery.LabelServiceName] = []string{"web", "shop"}[w.rng.IntN(2)]
		case 3:
			delete(slice.Labels, discovery.LabelManagedBy)
		}
	})
	return true
}

// tidyEndpoints lets users delete what they wrote for Services that have gone: Endpoints
// may be made before their Service, so no loop does that.
func (w *world) tidyEndpoints() {
	if !w.profile.mirrors {
		return
	}
	for _, e := range listOf[*v1.Endpoints](w.api, endpointsRes) {
		if w.api.objects[services][keyOf(e)] == nil {
			w.note("user deletes Endpoints %s", keyOf(e))
			must(w.api.delete(endpointsRes, keyOf(e), metav1.DeleteOptions{}))
		}
	}
}

// place is one address and port behind a Service.
type place struct {
	ip, port, node string
	uid            types.UID
	ready          bool
}

func placeOf(a v1.EndpointAddress, port string, ready bool) place {
	p := place{ip: a.IP, port: port, node: ptr.Deref(a.NodeName, ""), ready: ready}
	if a.TargetRef != nil {
		p.uid = a.TargetRef.UID
	}
	return p
}

// addressed are the places that Endpoints name.
func addressed(e *v1.Endpoints) map[place]bool {
	all := map[place]bool{}
	for _, subset := range e.Subsets {
		ports := []string{}
		for _, p := range subset.Ports {
			ports = append(ports, fmt.Sprintf("%s:%d/%s", p.Name, p.Port, p.Protocol))
		}
		if len(ports) == 0 {
			ports = []string{""}
		}
		for _, port := range ports {
			for n, a := range slices.Concat(subset.Addresses, subset.NotReadyAddresses) {
				all[placeOf(a, port, n < len(subset.Addresses))] = true
			}
		}
	}
	return all
}

// placesOf are those that a slice shows.
func placesOf(slice *discovery.EndpointSlice) []place {
	var all []place
	ports := portTexts(slice)
	if len(ports) == 0 {
		ports = []string{""}
	}
	for _, m := range membersOf(slice) {
		for _, port := range ports {
			all = append(all, place{m.ip, port, m.node, m.uid, m.ready})
		}
	}
	return all
}

func portTexts(slice *discovery.EndpointSlice) []string {
	var all []string
	for _, p := range slice.Ports {
		all = append(all, fmt.Sprintf("%s:%d/%s", ptr.Deref(p.Name, ""), ptr.Deref(p.Port, 0), ptr.Deref(p.Protocol, "")))
	}
	slices.Sort(all)
	return all
}

func texts(places map[place]bool) []string {
	var all []string
	for p := range places {
		all = append(all, fmt.Sprintf("%+v", p))
	}
	slices.Sort(all)
	return all
}

// mirrored are the places that slices are to show for these Endpoints.
func mirrored(e *v1.Endpoints, s *v1.Service) map[place]bool {
	if e == nil || s == nil || s.Spec.Selector != nil || e.Labels[discovery.LabelSkipMirror] == "true" {
		return nil
	}
	if _, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]; lock {
		return nil
	}
	return addressed(e)
}

// sliceKind is what no two mirrored slices of one Service have in common.
func sliceKind(slice *discovery.EndpointSlice) string {
	return string(slice.AddressType) + " " + strings.Join(portTexts(slice), " ")
}

// judgeMirror checks what is written to mirrored slices against what the caches showed
// when the sync began.
func (l *life) judgeMirror(key string) func(request, object) {
	w := l.w
	e, _ := l.cached(endpointsRes, key).(*v1.Endpoints)
	s, _ := l.cached(services, key).(*v1.Service)
	want := mirrored(e, s)
	return func(r request, target object) {
		if before, ok := target.(*discovery.EndpointSlice); ok && !isMirrorSlice(before) {
			w.mayBreach = "touches " + r.key + ", which is another's"
		}
		if r.verb == "delete" {
			w.judgeUnmirrored(target, want)
			return
		}
		next, ok := r.obj.(*discovery.EndpointSlice)
		if !ok || !isMirrorSlice(next) || next.Namespace+"/"+next.Labels[discovery.LabelServiceName] != key {
			w.breach("endpointslicemirror (%s): %s", key, r)
			return
		}
		for _, p := range placesOf(next) {
			if !want[p] {
				w.breach("EndpointSlice %s is to show %+v, which the cached Endpoints do not", r.key, p)
			}
		}
		if other := w.alike(next); r.verb == "create" && other != "" && w.slicesKnown {
			w.breach("EndpointSlice %s shows the same ports of %s as one that is to be made", other, key)
		}
	}
}

// alike names another slice that mirrors the same ports of the same Endpoints.
func (w *world) alike(slice *discovery.EndpointSlice) string {
	for _, other := range listOf[*discovery.EndpointSlice](w.api, endpointSlices) {
		if isMirrorSlice(other) && other.Name != slice.Name && other.Namespace == slice.Namespace &&
			other.Labels[discovery.LabelServiceName] == slice.Labels[discovery.LabelServiceName] &&
			metav1.GetControllerOfNoCopy(other) != nil && metav1.GetControllerOfNoCopy(slice) != nil &&
			metav1.GetControllerOfNoCopy(other).UID == metav1.GetControllerOfNoCopy(slice).UID && sliceKind(other) == sliceKind(slice) {
			return other.Name
		}
	}
	return ""
}

// judgeUnmirrored: what is to be shown is shown by another slice before one goes.
func (w *world) judgeUnmirrored(target object, want map[place]bool) {
	slice, ok := target.(*discovery.EndpointSlice)
	if !ok || !w.slicesKnown {
		return
	}
	left := map[place]bool{}
	for _, other := range listOf[*discovery.EndpointSlice](w.api, endpointSlices) {
		if isMirrorSlice(other) && other.Name != slice.Name && other.Namespace == slice.Namespace &&
			other.Labels[discovery.LabelServiceName] == slice.Labels[discovery.LabelServiceName] {
			for _, p := range placesOf(other) {
				left[p] = true
			}
		}
	}
	for _, p := range placesOf(slice) {
		if want[p] && !left[p] {
			w.mayBreach = fmt.Sprintf("deletes %s, which alone shows %+v", keyOf(slice), p)
		}
	}
}

// checkMirrored expects that slices show what Endpoints written by hand say, each place
// once, unless their loop is about to look again.
func (w *world) checkMirrored() {
	if !w.profile.mirrors || w.broken != "" {
		return
	}
	have := map[string]map[place]bool{}
	for _, slice := range listOf[*discovery.EndpointSlice](w.api, endpointSlices) {
		key := slice.Namespace + "/" + slice.Labels[discovery.LabelServiceName]
		e, _ := w.api.objects[endpointsRes][key].(*v1.Endpoints)
		if !isMirrorSlice(slice) || w.isUnsettled(key) {
			continue
		}
		if have[key] == nil {
			have[key] = map[place]bool{}
		}
		for _, p := range placesOf(slice) {
			if have[key][p] {
				w.breach("two mirrored EndpointSlices of %s show %+v", key, p)
			}
			have[key][p] = true
		}
		s, _ := w.api.objects[services][key].(*v1.Service)
		if want := mirrored(e, s); want == nil {
			w.breach("EndpointSlice %s mirrors what is not to be mirrored", keyOf(slice))
		} else if slice.Labels["tier"] != e.Labels["tier"] || slice.Annotations["note"] != e.Annotations["note"] {
			w.breach("EndpointSlice %s has other labels or annotations than Endpoints %s", keyOf(slice), key)
		}
	}
	for _, e := range listOf[*v1.Endpoints](w.api, endpointsRes) {
		key := keyOf(e)
		s, _ := w.api.objects[services][key].(*v1.Service)
		if want := mirrored(e, s); !w.isUnsettled(key) && !maps.Equal(have[key], want) {
			w.breach("slices mirror %v of Endpoints %s, which has %v", texts(have[key]), key, texts(want))
		}
	}
}

// isUnsettled says whether the slices of a key may be wrong for now: their loop is about
// to look again, or their namespace takes no more.
func (w *world) isUnsettled(key string) bool {
	ns, _, _ := strings.Cut(key, "/")
	return w.isWaiting("endpointslicemirror", key) || w.isEnding(ns)
}
