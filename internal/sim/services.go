package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const sliceManager = "endpointslice-controller.k8s.io"

// serviceActions disturb no Pods.
var serviceActions = []action{
	{10, (*world).makeService}, {10, (*world).editService}, {4, (*world).deleteService},
	{4, (*world).touchSlice}, {3, (*world).touchEndpoints}, {14, (*world).markPod},
}

var (
	aService    = kindOf[*v1.Service]{services}
	aSlice      = kindOf[*discovery.EndpointSlice]{endpointSlices}
	anEndpoints = kindOf[*v1.Endpoints]{endpointsRes}
)

func (w *world) selector() map[string]string {
	return []map[string]string{{"app": "a"}, {"app": "b"}, {"track": "new"}, nil}[w.rng.IntN(4)]
}

func (w *world) servicePorts() []v1.ServicePort {
	ports := []v1.ServicePort{{Name: "web", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: v1.ProtocolTCP}}
	if w.rng.IntN(3) == 0 {
		ports = append(ports, v1.ServicePort{Name: "more", Port: 81, TargetPort: intstr.FromInt32(8081 + w.rng.Int32N(2)), Protocol: v1.ProtocolTCP})
	}
	return ports
}

func (w *world) makeService() bool {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespaceFor("a"), Name: []string{"web", "shop"}[w.rng.IntN(2)]},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: []string{"10.96.0.9", v1.ClusterIPNone}[w.rng.IntN(2)],
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, Selector: w.selector(), Ports: w.servicePorts(),
			PublishNotReadyAddresses: w.rng.IntN(4) == 0,
		},
	}
	if w.profile.balancers && w.rng.IntN(2) == 0 {
		w.mayBalance(s)
	}
	if !w.createService(s) {
		return false
	}
	w.note("user creates Service %s: %s, %s", keyOf(s), serviceText(s), balancerText(s))
	return true
}

func (w *world) createService(s *v1.Service) bool {
	if w.profile.addresses {
		return w.createAddressed(s)
	}
	_, err := w.api.create(services, s)
	return err == nil
}

func serviceText(s *v1.Service) string {
	return fmt.Sprintf("selector %v, %d ports, labels %v, publishNotReadyAddresses=%v", s.Spec.Selector, len(s.Spec.Ports), s.Labels,
		s.Spec.PublishNotReadyAddresses)
}

func (w *world) editService() bool {
	s, ok := pick(w, aService, undeleted)
	if !ok {
		return false
	}
	change(w.api, services, s, false, func(s *v1.Service) {
		switch w.rng.IntN(4) {
		case 0:
			s.Spec.Selector = w.selector()
		case 1:
			s.Spec.Ports = w.servicePorts()
		case 2:
			s.Labels = map[string]string{"tier": fmt.Sprint(w.rng.IntN(3))}
		case 3:
			s.Spec.PublishNotReadyAddresses = !s.Spec.PublishNotReadyAddresses
		}
	})
	w.note("user changes Service %s: %s", keyOf(s), serviceText(w.api.objects[services][keyOf(s)].(*v1.Service)))
	return true
}

func (w *world) deleteService() bool {
	s, ok := pick(w, aService, undeleted)
	if ok {
		w.deleteWith(services, s, w.policy())
	}
	return ok
}

// markPod puts a label on a Pod, or takes it off, that only Services ask for.
func (w *world) markPod() bool {
	pod, ok := pick(w, aPod, func(p *v1.Pod) bool { return undeleted(p) && p.Labels["track"] != "" })
	if !ok || w.rng.IntN(2) == 0 {
		pod, ok = pick(w, aPod, undeleted)
	}
	if ok {
		change(w.api, pods, pod, false, func(p *v1.Pod) {
			p.Labels = maps.Clone(p.Labels)
			if p.Labels["track"] != "" {
				delete(p.Labels, "track")
			} else {
				metav1.SetMetaDataLabel(&p.ObjectMeta, "track", "new")
			}
		})
		w.note("user marks Pod %s, or not: %v", pod.Name, pod.Labels["track"] == "")
	}
	return ok
}

// touchSlice lets somebody delete or change what the loop wrote.
func (w *world) touchSlice() bool {
	slice, ok := pick(w, aSlice, isOurSlice)
	if !ok {
		return false
	}
	w.slicesKnown = false
	if w.rng.IntN(2) == 0 {
		w.note("user deletes EndpointSlice %s", keyOf(slice))
		must(w.api.delete(endpointSlices, keyOf(slice), metav1.DeleteOptions{}))
		return true
	}
	other := []string{"web", "shop"}[w.rng.IntN(2)]
	change(w.api, endpointSlices, slice, false, func(slice *discovery.EndpointSlice) {
		if len(slice.Endpoints) > 0 {
			slice.Endpoints[0].Addresses = []string{"10.9.9.9"}
			return
		}
		slice.Labels = maps.Clone(slice.Labels)
		slice.Labels[discovery.LabelServiceName] = other
	})
	w.note("user changes EndpointSlice %s", keyOf(slice))
	return true
}

func isOurSlice(slice *discovery.EndpointSlice) bool {
	return slice.Labels[discovery.LabelManagedBy] == sliceManager
}

func (w *world) touchEndpoints() bool {
	e, ok := pick(w, anEndpoints, undeleted)
	if !ok {
		return false
	}
	if w.rng.IntN(2) == 0 {
		w.note("user deletes Endpoints %s", keyOf(e))
		must(w.api.delete(endpointsRes, keyOf(e), metav1.DeleteOptions{}))
		return true
	}
	w.note("user changes Endpoints %s", keyOf(e))
	change(w.api, endpointsRes, e, false, func(e *v1.Endpoints) {
		e.Subsets = []v1.EndpointSubset{{Addresses: []v1.EndpointAddress{{IP: "10.9.9.9"}}}}
	})
	return true
}

// giveAddress gives a Pod that starts the first address that none of those that
// run has: what one leaves, the next one gets.
func (w *world) giveAddress(pod *v1.Pod) {
	if !w.profile.services {
		return
	}
	taken := map[string]bool{}
	for _, o := range w.api.objects[pods] {
		if other := o.(*v1.Pod); !isOver(other) {
			taken[other.Status.PodIP] = true
		}
	}
	for n := 1; pod.Status.PodIP == ""; n++ {
		if ip := fmt.Sprint("10.0.0.", n); !taken[ip] {
			pod.Status.PodIP, pod.Status.PodIPs = ip, []v1.PodIP{{IP: ip}}
		}
	}
}

// member is a Pod as a Service shows it.
type member struct {
	ip                          string
	uid                         types.UID
	node                        string
	ready, serving, terminating bool
}

// sight is what there is of a Service, in truth or as the caches have it.
type sight struct {
	service *v1.Service // nil: none
	pods    []object
	nodes   map[string]bool
}

// seen is what the caches show of the Service of a key.
func (l *life) seen(key string) *sight {
	s := &sight{nodes: map[string]bool{}}
	if o, ok := l.cached(services, key).(*v1.Service); ok {
		s.service = o
	}
	for _, o := range l.factory.of[pods].indexer.List() {
		s.pods = append(s.pods, o.(object))
	}
	for _, name := range l.factory.of[nodes].indexer.ListKeys() {
		s.nodes[name] = true
	}
	return s
}

func (w *world) truthOf(service *v1.Service) *sight {
	s := &sight{service: service, nodes: map[string]bool{}, pods: w.api.all(pods)}
	for name := range w.api.objects[nodes] {
		s.nodes[name] = true
	}
	return s
}

// members are the Pods that the Service's slices are to show.
func (s *sight) members() map[member]bool {
	all := map[member]bool{}
	if s.service == nil || len(s.service.Spec.Selector) == 0 {
		return all
	}
	selector, published := labels.SelectorFromSet(s.service.Spec.Selector), s.service.Spec.PublishNotReadyAddresses
	for _, o := range s.pods {
		pod := o.(*v1.Pod)
		if pod.Namespace != s.service.Namespace || isOver(pod) || pod.Status.PodIP == "" || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		_, serving := readySince(pod)
		m := member{ip: pod.Status.PodIP, uid: pod.UID, node: pod.Spec.NodeName, serving: serving, terminating: pod.DeletionTimestamp != nil}
		m.ready = published || serving && !m.terminating
		if s.nodes[m.node] || published {
			all[m] = true
		}
	}
	return all
}

// addresses are the same for its Endpoints, which have no Pods that end and do not
// ask for the node.
func (s *sight) addresses() map[member]bool {
	known := &sight{service: s.service, pods: s.pods, nodes: map[string]bool{}}
	for _, o := range s.pods {
		known.nodes[o.(*v1.Pod).Spec.NodeName] = true
	}
	all := map[member]bool{}
	for m := range known.members() {
		if !m.terminating || s.service.Spec.PublishNotReadyAddresses {
			all[member{ip: m.ip, uid: m.uid, node: m.node, ready: m.ready}] = true
		}
	}
	return all
}

// noteReowned: the loop of slices writes the owner anew, and may still see one that has
// let go of them and is gone.
func (l *ledger) noteReowned(before, after object) {
	slice, ok := after.(*discovery.EndpointSlice)
	if !ok || before == nil || len(before.GetOwnerReferences()) > 0 {
		return
	}
	for _, ref := range slice.OwnerReferences {
		if _, was := l.orphaned[ref.UID]; was {
			l.reowned[slice.UID] = true
		}
	}
}

func membersOf(slice *discovery.EndpointSlice) []member {
	var all []member
	for _, e := range slice.Endpoints {
		m := member{ip: strings.Join(e.Addresses, " "), node: ptr.Deref(e.NodeName, ""), ready: ptr.Deref(e.Conditions.Ready, true),
			serving: ptr.Deref(e.Conditions.Serving, true), terminating: ptr.Deref(e.Conditions.Terminating, false)}
		if e.TargetRef != nil {
			m.uid = e.TargetRef.UID
		}
		all = append(all, m)
	}
	return all
}

func addressesOf(e *v1.Endpoints) map[member]bool {
	all := map[member]bool{}
	for _, subset := range e.Subsets {
		for n, a := range slices.Concat(subset.Addresses, subset.NotReadyAddresses) {
			m := member{ip: a.IP, node: ptr.Deref(a.NodeName, ""), ready: n < len(subset.Addresses)}
			if a.TargetRef != nil {
				m.uid = a.TargetRef.UID
			}
			all[m] = true
		}
	}
	return all
}

// judgeShown checks what a loop is about to show against what it has seen: no Pod
// that it should not know, none twice, and none ready that ends.
func (w *world) judgeShown(s *syncing, r request) {
	switch o := r.obj.(type) {
	case *discovery.EndpointSlice:
		expected := s.seen.members()
		for _, m := range membersOf(o) {
			if !expected[m] {
				w.breach("EndpointSlice %s is to show %+v, which the cache does not", r.key, m)
			}
			if other := w.alsoShows(o, m); r.verb == "create" && other != "" && w.slicesKnown {
				w.breach("%s is shown by EndpointSlice %s and is to be shown by another", m.ip, other)
			}
		}
	case *v1.Endpoints:
		if have, want := addressesOf(o), s.seen.addresses(); !maps.Equal(have, want) {
			w.breach("Endpoints %s are to show %+v, where the cache has %+v", r.key, have, want)
		}
	}
}

// alsoShows names another slice of the same Service that shows the Pod.
func (w *world) alsoShows(slice *discovery.EndpointSlice, m member) string {
	for _, other := range listOf[*discovery.EndpointSlice](w.api, endpointSlices) {
		if isOurSlice(other) && other.Namespace == slice.Namespace && metav1.GetControllerOfNoCopy(other) != nil &&
			metav1.GetControllerOfNoCopy(other).UID == metav1.GetControllerOfNoCopy(slice).UID &&
			slices.ContainsFunc(membersOf(other), func(o member) bool { return o.uid == m.uid }) {
			return other.Name
		}
	}
	return ""
}

// checkShown expects that what Services show is what their Pods say, unless their
// loop is about to look again.
func (w *world) checkShown() {
	if !w.profile.services || w.broken != "" {
		return
	}
	for _, s := range listOf[*v1.Service](w.api, services) {
		if s.DeletionTimestamp != nil || len(s.Spec.Selector) == 0 || s.Spec.Type == v1.ServiceTypeExternalName || w.isEnding(s.Namespace) {
			continue
		}
		truth := w.truthOf(s)
		if !w.isWaiting("endpointslice", keyOf(s)) {
			w.checkSlices(s, truth.members())
		}
		if !w.isWaiting("endpoints", keyOf(s)) {
			w.checkEndpoints(s, truth.addresses())
		}
	}
	for _, e := range listOf[*v1.Endpoints](w.api, endpointsRes) {
		if w.api.objects[services][keyOf(e)] == nil && !w.isWaiting("endpoints", keyOf(e)) {
			w.breach("Endpoints %s have outlived their Service", keyOf(e))
		}
	}
}

func (w *world) isWaiting(loop, key string) bool {
	for _, d := range w.life.loops {
		if _, waits := d.queue.waits[key]; waits && d.Name() == loop {
			return true
		}
	}
	return false
}

func (w *world) checkSlices(s *v1.Service, want map[member]bool) {
	have, found := map[member]string{}, false
	for _, slice := range listOf[*discovery.EndpointSlice](w.api, endpointSlices) {
		if !isOurSlice(slice) || slice.Namespace != s.Namespace || slice.Labels[discovery.LabelServiceName] != s.Name {
			continue
		}
		found = true
		for _, m := range membersOf(slice) {
			if have[m] != "" {
				w.breach("%s of Service %s is shown by %s and %s", m.ip, keyOf(s), have[m], slice.Name)
			}
			have[m] = slice.Name
			if !want[m] {
				w.breach("EndpointSlice %s shows %+v, which is not so", keyOf(slice), m)
			}
		}
		if len(slice.Endpoints) > 0 && !samePorts(slice, s) || slice.Labels["tier"] != s.Labels["tier"] {
			w.breach("EndpointSlice %s has other ports or labels than Service %s", keyOf(slice), keyOf(s))
		}
	}
	if !found {
		w.breach("Service %s has no EndpointSlice", keyOf(s))
	}
	if len(have) != len(want) {
		w.breach("Service %s shows %d Pods and has %d", keyOf(s), len(have), len(want))
	}
}

func samePorts(slice *discovery.EndpointSlice, s *v1.Service) bool {
	have, want := map[string]int32{}, map[string]int32{}
	for _, p := range slice.Ports {
		have[*p.Name] = *p.Port
	}
	for _, p := range s.Spec.Ports {
		want[p.Name] = p.TargetPort.IntVal
	}
	return maps.Equal(have, want)
}

func (w *world) checkEndpoints(s *v1.Service, want map[member]bool) {
	e, ok := w.api.objects[endpointsRes][keyOf(s)].(*v1.Endpoints)
	switch {
	case !ok:
		w.breach("Service %s has no Endpoints", keyOf(s))
	case !maps.Equal(addressesOf(e), want):
		w.breach("Endpoints %s show %+v, where there is %+v", keyOf(s), addressesOf(e), want)
	case e.Labels["tier"] != s.Labels["tier"]:
		w.breach("Endpoints %s have other labels than their Service", keyOf(s))
	}
}
