package endpoints

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	packing "k8s.io/kubernetes/pkg/api/v1/endpoints"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	netutils "k8s.io/utils/net"
)

const (
	// labelManagedBy tells objects of this loop from those of clients. The values are
	// upstream's.
	labelManagedBy = "endpoints.kubernetes.io/managed-by"
	managedBy      = "endpoint-controller"
	// most is how many addresses an object has.
	most = 1000
	// cut is the annotation's value when there were more.
	cut = "truncated"
)

// Observed is what one plan is made from. Nothing in it is changed by plan.
type Observed struct {
	// Service is nil when there is none of the key's name.
	Service *v1.Service
	// Pods are those that the Service selects, in any order.
	Pods []*v1.Pod
	// Endpoints is the present object; nil: there is none.
	Endpoints *v1.Endpoints
	// Since is when that changed which a write would show; zero: it is not known.
	Since time.Time
}

// Plan is what to do.
type Plan struct{ Actions []Action }

// Action is one of Create, Update and Delete.
type Action interface{ isAction() }

// Create makes the object.
type Create struct {
	Endpoints *v1.Endpoints
	Why       string
}

// Update replaces the object, if it is still the observed one.
type Update struct {
	Endpoints *v1.Endpoints
	Why       string
}

// Delete removes the object, if it is still the observed one.
type Delete struct {
	Endpoints *v1.Endpoints
	Why       string
}

func (Create) isAction() {}
func (Update) isAction() {}
func (Delete) isAction() {}

// plan decides. The state table in doc.go is its contents.
func plan(o Observed) Plan {
	switch {
	case o.Service == nil && o.Endpoints == nil:
		return Plan{}
	case o.Service == nil:
		return Plan{[]Action{Delete{o.Endpoints, "there is no such Service"}}}
	case o.Service.Spec.Selector == nil || o.Service.Spec.Type == v1.ServiceTypeExternalName || o.Service.DeletionTimestamp != nil:
		return Plan{}
	}
	subsets, over := truncate(pack(o.Service, o.Pods))
	labels := labelsFor(o.Service)
	if have := o.Endpoints; have != nil {
		_, marked := have.Annotations[v1.EndpointsOverCapacity]
		if apiequality.Semantic.DeepEqual(have.Subsets, subsets) && maps.Equal(have.Labels, labels) && marked == over {
			return Plan{}
		}
	}
	next := &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: o.Service.Namespace, Name: o.Service.Name}}
	if o.Endpoints != nil {
		next = o.Endpoints.DeepCopy()
	}
	next.Subsets, next.Labels = subsets, labels
	annotate(next, v1.EndpointsOverCapacity, cut, over)
	annotate(next, v1.EndpointsLastChangeTriggerTime, o.Since.UTC().Format(time.RFC3339Nano), !o.Since.IsZero())
	if o.Endpoints == nil {
		return Plan{[]Action{Create{next, "the Service has no Endpoints"}}}
	}
	return Plan{[]Action{Update{next, "the Service's Pods are others"}}}
}

func annotate(e *v1.Endpoints, key, value string, on bool) {
	if !on {
		delete(e.Annotations, key)
		return
	}
	if e.Annotations == nil {
		e.Annotations = map[string]string{}
	}
	e.Annotations[key] = value
}

// labelsFor are the Service's, and two more.
func labelsFor(service *v1.Service) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, service.Labels)
	delete(labels, v1.IsHeadlessService)
	if service.Spec.ClusterIP == v1.ClusterIPNone || service.Spec.ClusterIP == "" {
		labels[v1.IsHeadlessService] = ""
	}
	labels[labelManagedBy] = managedBy
	return labels
}

// member is a Pod as an address, and whether it is ready.
type member struct {
	address v1.EndpointAddress
	ready   bool
}

// key tells members apart: by address, and by Pod where several have one address.
func (m member) key() string { return m.address.IP + "/" + string(m.address.TargetRef.UID) }

// pack puts the Pods into subsets. Ports that all the same Pods have share one; usually
// that is all of them.
func pack(service *v1.Service, pods []*v1.Pod) []v1.EndpointSubset {
	members := map[string]member{}
	byPort := map[v1.EndpointPort][]string{}
	ports := map[string]v1.EndpointPort{} // by text: a port holds a pointer
	for _, pod := range pods {
		m, ok := memberOf(service, pod)
		if !ok {
			continue
		}
		members[m.key()] = m
		for _, port := range portsOf(service, pod) {
			text := portText(port)
			if _, known := ports[text]; !known {
				ports[text] = port
			}
			byPort[ports[text]] = append(byPort[ports[text]], m.key())
		}
	}
	bySet := map[string]*v1.EndpointSubset{}
	for port, keys := range byPort {
		slices.Sort(keys)
		keys = slices.Compact(keys)
		set := strings.Join(keys, " ")
		if bySet[set] == nil {
			bySet[set] = subsetOf(keys, members)
		}
		if port.Port != noPort {
			bySet[set].Ports = append(bySet[set].Ports, port)
		}
	}
	var subsets []v1.EndpointSubset
	for _, subset := range bySet {
		subsets = append(subsets, *subset)
	}
	return packing.SortSubsets(subsets)
}

// noPort stands for the one port of a headless Service that has none.
const noPort = -1

func subsetOf(keys []string, members map[string]member) *v1.EndpointSubset {
	subset := &v1.EndpointSubset{}
	for _, key := range keys {
		if m := members[key]; m.ready {
			subset.Addresses = append(subset.Addresses, m.address)
		} else {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, m.address)
		}
	}
	return subset
}

func portText(p v1.EndpointPort) string {
	app := ""
	if p.AppProtocol != nil {
		app = "/" + *p.AppProtocol
	}
	return fmt.Sprintf("%s:%d/%s%s", p.Name, p.Port, p.Protocol, app)
}

// memberOf is false for Pods that are not in Endpoints.
func memberOf(service *v1.Service, pod *v1.Pod) (member, bool) {
	if !endpointsliceutil.ShouldPodBeInEndpoints(pod, service.Spec.PublishNotReadyAddresses) {
		return member{}, false
	}
	ip := addressOf(service, pod)
	if ip == "" {
		return member{}, false
	}
	address := v1.EndpointAddress{
		IP: ip, NodeName: &pod.Spec.NodeName,
		TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if endpointsliceutil.ShouldSetHostname(pod, service) {
		address.Hostname = pod.Spec.Hostname
	}
	return member{address, service.Spec.PublishNotReadyAddresses || podutil.IsPodReady(pod)}, true
}

// addressOf is the Pod's address in the Service's first family.
func addressOf(service *v1.Service, pod *v1.Pod) string {
	family := v1.IPv4Protocol
	switch {
	case len(service.Spec.IPFamilies) > 0:
		family = service.Spec.IPFamilies[0]
	case netutils.IsIPv6String(cmp.Or(strings.TrimPrefix(service.Spec.ClusterIP, v1.ClusterIPNone), pod.Status.PodIP)):
		family = v1.IPv6Protocol
	}
	for _, podIP := range pod.Status.PodIPs {
		if ip := netutils.ParseIPSloppy(podIP.IP); ip != nil && netutils.IsIPv6(ip) == (family == v1.IPv6Protocol) {
			return ip.String()
		}
	}
	return ""
}

// portsOf are the Pod's ports that the Service's lead to. A port by a name that the Pod
// does not have is left out.
func portsOf(service *v1.Service, pod *v1.Pod) []v1.EndpointPort {
	if len(service.Spec.Ports) == 0 && service.Spec.ClusterIP == v1.ClusterIPNone {
		return []v1.EndpointPort{{Port: noPort}}
	}
	var ports []v1.EndpointPort
	for i := range service.Spec.Ports {
		p := &service.Spec.Ports[i]
		if number, err := endpointslice.FindPort(pod, p); err == nil {
			ports = append(ports, v1.EndpointPort{Name: p.Name, Port: int32(number), Protocol: p.Protocol, AppProtocol: p.AppProtocol})
		}
	}
	return ports
}

// truncate leaves at most 1,000 addresses, ready ones first, from each subset in
// proportion, rounded up: of 1,500 ready ones in subsets of 1,000 and 500, 667 and 333.
func truncate(subsets []v1.EndpointSubset) (_ []v1.EndpointSubset, over bool) {
	ready, unready := 0, 0
	for _, s := range subsets {
		ready, unready = ready+len(s.Addresses), unready+len(s.NotReadyAddresses)
	}
	if ready+unready <= most {
		return subsets, false
	}
	cutReady := ready > most
	room, total := most-ready, unready
	if cutReady {
		room, total = most, ready
	}
	left := room
	for i := range subsets {
		list := &subsets[i].NotReadyAddresses
		if cutReady {
			*list = nil
			list = &subsets[i].Addresses
		}
		share := min(int(math.Ceil(float64(len(*list))/float64(total)*float64(room))), left, len(*list))
		*list = (*list)[:share]
		left -= share
	}
	return subsets, true
}
