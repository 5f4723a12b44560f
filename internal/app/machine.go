package app

import (
	"context"
	"net/netip"

	"mend/internal/controller/replicaset"
)

// machine runs real containers: their runtime, the Pod network, and what carries
// Services. Only Linux has one, and a mend with simulated nodes alone needs none.
type machine interface {
	// serviceRanges are where Services' addresses are to come from; six is the zero value
	// where they have none of IPv6.
	serviceRanges() (four, six netip.Prefix, err error)
	// start brings the runtime up and connects to it.
	start(ctx context.Context) error
	// serve makes the API listen where Pods reach it, and begins to follow Services.
	serve() error
	// routing tells whether requests reach a Pod; nil if that is not confirmed.
	routing() replicaset.Routing
	// startNode runs the agent, registered is called when the Node is Ready.
	startNode(ctx context.Context) error
	registered(ctx context.Context)
	// hurry has the runtime there when the Pods are to be ended, and end ends it when
	// they have.
	hurry(ctx context.Context) error
	end(ctx context.Context) error
	// leave ends the supervision; the containers go on. It may follow end.
	leave()
	describe(status *Status)
}

// simulatedServices are for simulated nodes alone: nothing is routed there, so any
// range will do.
var simulatedServices = netip.MustParsePrefix("10.96.0.0/12")

// chooseServiceRange gives the instance its ranges of Service addresses.
func (p *process) chooseServiceRange() (err error) {
	if p.host == nil {
		p.serviceRange = simulatedServices
		return nil
	}
	p.serviceRange, p.serviceRange6, err = p.host.serviceRanges()
	return err
}

// serviceRanges are the ranges of Services' addresses, the default family's first.
func (p *process) serviceRanges() []string {
	ranges := []string{p.serviceRange.String()}
	if p.serviceRange6.IsValid() {
		ranges = append(ranges, p.serviceRange6.String())
	}
	return ranges
}
