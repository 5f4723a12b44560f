package proxy

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/network/catalog"
)

// landed is how long after its endpoint began to end a handshake may still be under
// way. Most take microseconds, but on a machine that is too busy the kernel's own threads
// wait, too, and whoever loses the flow of a handshake that does come to its end gets no
// answer. Clients repeat a lost packet after a second.
const landed = 250 * time.Millisecond

// leaving are the TCP endpoints that end, and whose flows are not yet forgotten. When one
// begins to, it is its handshakes: a client whose first packet or its answer was lost
// repeats it after a second, and would follow that flow to an endpoint that is gone by
// then. When it is gone, it is the rest: a client that uses a port again would follow
// the flow that the port had before.
type leaving struct {
	// ending are those of each Service that are known to end.
	ending map[catalog.Key]map[endsAt]bool
	// pending are those whose flows are to be forgotten. They are looked at when due
	// fires.
	pending map[netip.AddrPort]parting
	due     *time.Timer
}

// endsAt is an endpoint of one Pod: addresses come back with others.
type endsAt struct {
	pod types.UID
	at  netip.AddrPort
}

// parting says which flows to an endpoint are to be forgotten, and when.
type parting struct {
	due  time.Time
	what forgettable
}

// forgettable are flows of an endpoint.
type forgettable int

const (
	handshakes forgettable = iota + 1 // those that are not connections yet
	allFlows
)

func newLeaving() *leaving {
	return &leaving{ending: map[catalog.Key]map[endsAt]bool{}, pending: map[netip.AddrPort]parting{}, due: time.NewTimer(time.Hour)}
}

// note takes the endpoints that began to end, and those that have.
func (l *leaving) note(changes catalog.Changes, now time.Time) {
	for key, service := range changes.Services {
		before, ending := l.ending[key], map[endsAt]bool{}
		there := map[netip.AddrPort]bool{}
		for _, slice := range service.Slices {
			for endpoint, ends := range endpointsOf(slice) {
				there[endpoint.at] = true
				if !ends {
					continue
				}
				ending[endpoint] = true
				if !before[endpoint] {
					l.part(endpoint.at, handshakes, now)
				}
			}
		}
		delete(l.ending, key)
		if len(ending) > 0 {
			l.ending[key] = ending
		}
		for endpoint := range before {
			// Where the Service itself went, or only its wish for this Pod, what is under
			// way may still be answered.
			if service.Object != nil && !there[endpoint.at] && !l.ends(endpoint) {
				l.part(endpoint.at, allFlows, now)
			}
		}
	}
}

// ends says whether some Service shows the endpoint as ending.
func (l *leaving) ends(endpoint endsAt) bool {
	for _, ending := range l.ending {
		if ending[endpoint] {
			return true
		}
	}
	return false
}

func (l *leaving) part(at netip.AddrPort, what forgettable, now time.Time) {
	if len(l.pending) == 0 {
		l.due.Reset(landed)
	}
	l.pending[at] = parting{now.Add(landed), what}
}

// take returns the endpoints that are due.
func (l *leaving) take(now time.Time) map[netip.AddrPort]forgettable {
	due := map[netip.AddrPort]forgettable{}
	for at, p := range l.pending {
		if !p.due.After(now) {
			due[at] = p.what
			delete(l.pending, at)
		}
	}
	if len(l.pending) > 0 {
		l.due.Reset(landed)
	}
	return due
}

// endpointsOf are the TCP endpoints of a slice, and whether they end.
func endpointsOf(slice *discovery.EndpointSlice) map[endsAt]bool {
	found := map[endsAt]bool{}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		var pod types.UID
		if e.TargetRef != nil {
			pod = e.TargetRef.UID
		}
		for j := range slice.Ports {
			port := &slice.Ports[j]
			if port.Port == nil || keyOf(port).protocol != v1.ProtocolTCP {
				continue
			}
			if read, ok := readEndpoint(e, uint16(*port.Port), ""); ok {
				found[endsAt{pod, read.at}] = read.terminating
			}
		}
	}
	return found
}
