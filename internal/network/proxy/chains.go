package proxy

import "slices"

// Hooks of the base chains, in the order in which a packet meets them.
const (
	hookPrerouting  = "prerouting"
	hookOutput      = "output"
	hookPostrouting = "postrouting"
)

// Priorities, as nft names them: dstnat is -100, srcnat 100.
const (
	priorityEarly  = -110
	priorityDstNAT = -100
	priorityLate   = -90
	prioritySrcNAT = 100
)

// fixed are the chains that do not depend on Services.
func fixed(c Config, family Family) []Chain {
	newTo := func(chain string) Rule { return Rule{NewConnection{}, Jump{chain}} }
	chains := []Chain{
		{Name: "filter-prerouting-early", Hook: hookPrerouting, Priority: priorityEarly, Rules: []Rule{newTo("firewall")}},
		{Name: "filter-output-early", Hook: hookOutput, Priority: priorityEarly, Rules: []Rule{newTo("firewall")}},
		{Name: "nat-prerouting", Hook: hookPrerouting, Priority: priorityDstNAT, NAT: true, Rules: []Rule{{Jump{"services"}}}},
		{Name: "nat-output", Hook: hookOutput, Priority: priorityDstNAT, NAT: true, Rules: []Rule{{Jump{"services"}}}},
		// What nobody answers is ended before it is routed: there need not be a route.
		// A first packet that was still under way when its endpoint stopped listening is not
		// refused: the client repeats it and finds another one.
		{Name: "filter-prerouting-late", Hook: hookPrerouting, Priority: priorityLate, Rules: []Rule{
			{OfTCP{}, Refusal{}, Translated{}, Found{setEnding}, Drop{}}, newTo("unserved"), newTo("unknown")}},
		{Name: "filter-output-late", Hook: hookOutput, Priority: priorityLate, Rules: []Rule{newTo("unserved"), newTo("unknown")}},
		{Name: "nat-postrouting", Hook: hookPostrouting, Priority: prioritySrcNAT, NAT: true, Rules: []Rule{
			{Marked{}, Unmark{}, Masquerade{}},
			{Translated{}, Found{setHairpin}, Masquerade{}},
		}},
		// Twice, because each look-up sees the sets as they are at that moment: while a
		// transaction takes effect, one can say "of three" and the next find but two.
		{Name: "services", Rules: []Rule{{Dispatch{setServices}}, toNodePort(family), {Dispatch{setServices}}, toNodePort(family)}},
		{Name: "firewall", Rules: []Rule{{Found{setFirewalled}, NotFound{setAllowed}, Drop{}}}},
		{Name: "unserved", Rules: []Rule{
			{Found{setReject}, Jump{"refuse"}}, {Found{setDrop}, Drop{}},
			{ToHere{}, Found{setRejectNodePorts}, Jump{"refuse"}}, {ToHere{}, Found{setDropNodePorts}, Drop{}},
		}},
		// A reset, because the kernel sends only a few ICMP messages a second to a host,
		// and none while it would like to tell that host of a shorter way.
		{Name: "refuse", Rules: []Rule{{OfTCP{}, Reset{}}, {Reject{}}}},
		// A wrong port of a ClusterIP is refused; an address that nobody has is a black
		// hole, so that it cannot leave the machine by the default route.
		{Name: "unknown", Rules: []Rule{{Found{setClusterIPs}, Jump{"refuse"}}}},
	}
	if c.Bridge != "" {
		// Pods reach each other through the node. Were they told that there is a shorter
		// way, answers would no longer pass here to be translated back.
		output := slices.IndexFunc(chains, func(c Chain) bool { return c.Name == "filter-output-late" })
		chains[output].Rules = append(chains[output].Rules, Rule{Redirection{c.Bridge}, Drop{}})
	}
	unknown := &chains[len(chains)-1]
	for _, r := range ofFamily(c.ServiceRanges, family) {
		unknown.Rules = append(unknown.Rules, Rule{To{Range: r}, Drop{}})
	}
	return chains
}

// toNodePort leads to the node ports. ::1 cannot be translated: the kernel has no
// route_localnet for IPv6.
func toNodePort(family Family) Rule {
	if family == IPv6 {
		return Rule{ToHere{}, To{Range: loopback6, Not: true}, Dispatch{setNodePorts}}
	}
	return Rule{ToHere{}, Dispatch{setNodePorts}}
}

// chain is how a class's connections find an endpoint.
func (k Class) chain(c Config, family Family) Chain {
	choose := func(count, from int) Rule {
		return Rule{Balance{NodePort: k.NodePort, Count: count, From: from, Remember: k.Sticky}}
	}
	all := choose(k.Cluster, 0)
	var rules []Rule
	if k.Sticky > 0 {
		rules = append(rules, Rule{Recall{NodePort: k.NodePort, Remember: k.Sticky}}, Rule{Forget{NodePort: k.NodePort}})
	}
	switch k.Kind {
	case Internal:
		// From outside the cluster by a route to this node: the answer must pass here.
		rules = append([]Rule{append(fromNoPod(c, family), Mark{})}, append(rules, all)...)
	case External:
		// The endpoint may be on another node: the answer must pass here.
		rules = append([]Rule{{Mark{}}}, append(rules, all)...)
	case ExternalLocal:
		// The source stays as it is, since no other node is in the way. Pods and the
		// node itself are not outside: they reach all endpoints.
		rules = append([]Rule{{FromHere{}, Mark{}}}, rules...)
		if k.Cluster > 0 {
			for _, r := range ofFamily(c.PodRanges, family) {
				rules = append(rules, append(Rule{From{Range: r}}, all...))
			}
			rules = append(rules, append(Rule{FromHere{}}, all...))
		}
		if k.Local > 0 {
			rules = append(rules, choose(k.Local, localFrom))
		}
	}
	return Chain{Name: k.Name(), Rules: rules}
}

// fromNoPod matches what none of this node's Pods sent.
func fromNoPod(c Config, family Family) Rule {
	var rule Rule
	for _, r := range ofFamily(c.PodRanges, family) {
		rule = append(rule, From{Range: r, Not: true})
	}
	return rule
}
