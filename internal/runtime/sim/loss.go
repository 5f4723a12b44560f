package sim

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeRule says what happens to nodes as a whole. The first rule whose name fits
// the node's counts; * stands for any characters, and an empty name fits all.
type NodeRule struct {
	Name string `json:"name,omitempty"`
	Lost Loss   `json:"lost,omitempty"`
}

// Loss cuts a node off: its agent neither reports nor hears anything.
type Loss struct {
	// After is the time from the node's start, or its return, until it is lost.
	After  metav1.Duration `json:"after,omitempty"`
	Spread metav1.Duration `json:"spread,omitempty"`
	// For is how long it stays away; without it the node never comes back.
	For metav1.Duration `json:"for,omitempty"`
	// Power: the containers end too, as in a power cut. Otherwise they run on
	// unseen, as when the network is cut.
	Power bool `json:"power,omitempty"`
	// Repeat loses the node again and again.
	Repeat bool `json:"repeat,omitempty"`
}

// Outage is one loss of one node.
type Outage struct {
	After, For time.Duration
	Power      bool
}

// Outage is what the node goes through after it was lost times already; false when
// nothing happens to it any more.
func (b *Behaviour) Outage(node string, times int) (Outage, bool) {
	for i := range b.Nodes {
		rule := &b.Nodes[i]
		if rule.Name != "" && !globMatch(rule.Name, node) {
			continue
		}
		lost := rule.Lost
		if lost == (Loss{}) || times > 0 && !lost.Repeat {
			return Outage{}, false
		}
		after := spread(b.Seed, lost.After.Duration, lost.Spread.Duration, "lost", node, strconv.Itoa(times))
		return Outage{After: after, For: lost.For.Duration, Power: lost.Power}, true
	}
	return Outage{}, false
}
