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
// way. The Pod is still there then: its end waits a little longer.
const landed = 40 * time.Millisecond

// leaving are the TCP endpoints that began to end and whose lost handshakes are not yet
// forgotten. A client whose first packet was lost repeats it after a second; it would
// follow the first one's flow to an endpoint that is gone by then.
type leaving struct {
	// ending are those of each Service that are known to end.
	ending map[catalog.Key]map[endsAt]bool
	// pending are those that are due when due fires.
	pending map[netip.AddrPort]bool
	due     *time.Timer
}

// endsAt is an endpoint of one Pod: addresses come back with others.
type endsAt struct {
	pod types.UID
	at  netip.AddrPort
}

func newLeaving() *leaving {
	return &leaving{ending: map[catalog.Key]map[endsAt]bool{}, pending: map[netip.AddrPort]bool{}, due: time.NewTimer(time.Hour)}
}

// note takes the endpoints that began to end.
func (l *leaving) note(changes catalog.Changes) {
	for key, service := range changes.Services {
		before, now := l.ending[key], map[endsAt]bool{}
		for _, slice := range service.Slices {
			for _, endpoint := range ending(slice) {
				now[endpoint] = true
				if !before[endpoint] {
					l.pending[endpoint.at] = true
					l.due.Reset(landed)
				}
			}
		}
		delete(l.ending, key)
		if len(now) > 0 {
			l.ending[key] = now
		}
	}
}

// take returns the endpoints that are due.
func (l *leaving) take() map[netip.AddrPort]bool {
	due := l.pending
	l.pending = map[netip.AddrPort]bool{}
	return due
}

// ending are the TCP endpoints of a slice that end.
func ending(slice *discovery.EndpointSlice) []endsAt {
	var found []endsAt
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if e.Conditions.Terminating == nil || !*e.Conditions.Terminating {
			continue
		}
		var pod types.UID
		if e.TargetRef != nil {
			pod = e.TargetRef.UID
		}
		for _, text := range e.Addresses {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				continue // validation admits none
			}
			for _, port := range slice.Ports {
				if port.Port != nil && (port.Protocol == nil || *port.Protocol == v1.ProtocolTCP) {
					found = append(found, endsAt{pod, netip.AddrPortFrom(addr, uint16(*port.Port))})
				}
			}
		}
	}
	return found
}
