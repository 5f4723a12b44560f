package traffic

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Acks is what every node's proxy has confirmed, as far as this process knows.
type Acks struct {
	mu    sync.Mutex
	nodes map[string]*nodeAck
	// leases maps a Lease to its node.
	leases map[string]string
	// local is this process's own node: what its proxy says counts at once, and what
	// arrives over the API later is older.
	local   string
	listed  bool
	changed func()
}

type nodeAck struct {
	version uint64
	// lagging: a wait ran out because of it. It is not waited for until it confirms.
	lagging bool
}

// NewAcks returns an empty one; Run fills it. local may be empty.
func NewAcks(local string) *Acks {
	return &Acks{nodes: map[string]*nodeAck{}, leases: map[string]string{}, local: local, changed: func() {}}
}

// Run follows the confirmations until ctx ends.
func (a *Acks) Run(ctx context.Context, client kubernetes.Interface, log *slog.Logger) {
	lw := cache.NewFilteredListWatchFromClient(client.CoordinationV1().RESTClient(), "leases", Namespace,
		func(options *metav1.ListOptions) { options.LabelSelector = Label })
	log.Debug("watching the proxies' confirmations")
	cache.NewReflectorWithOptions(lw, &coordination.Lease{}, ackStore{a}, cache.ReflectorOptions{Name: "traffic/acks"}).RunWithContext(ctx)
}

// Programmed notes what this process's own proxy has done, without a way over the API.
func (a *Acks) Programmed(version uint64) {
	a.mu.Lock()
	a.nodes[a.local] = &nodeAck{version: version}
	a.mu.Unlock()
	a.changed()
}

// behind names the nodes that have not confirmed version and are waited for. Before the
// first list nobody knows.
func (a *Acks) behind(version uint64) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var nodes []string
	if !a.listed {
		return []string{"(not known yet)"}
	}
	for name, ack := range a.nodes {
		if ack.version < version && !ack.lagging {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// gaveUp notes that a wait for version ran out, and names the nodes that it was for.
func (a *Acks) gaveUp(version uint64) []string {
	nodes := a.behind(version)
	a.mu.Lock()
	for _, name := range nodes {
		if ack := a.nodes[name]; ack != nil {
			ack.lagging = true
		}
	}
	a.mu.Unlock()
	if len(nodes) > 0 {
		a.changed()
	}
	return nodes
}

// ackStore is where the reflector puts the Leases.
type ackStore struct{ *Acks }

// put takes a Lease; its resourceVersion changes only with what it confirms.
func (s ackStore) put(lease *coordination.Lease) {
	node, version, ok := confirmation(lease)
	if !ok {
		return
	}
	s.leases[lease.Name] = node
	old := s.nodes[node]
	if old != nil && (node == s.local && s.local != "" || old.version == version) {
		return
	}
	s.nodes[node] = &nodeAck{version: version}
}

// remove forgets a node whose proxy has withdrawn. This process's own is still there,
// whoever deleted its Lease: it says so itself.
func (s ackStore) remove(name string) {
	if node := s.leases[name]; node != s.local || s.local == "" {
		delete(s.nodes, node)
	}
	delete(s.leases, name)
}

func (s ackStore) Add(obj any) error {
	lease, ok := obj.(*coordination.Lease)
	if !ok {
		return fmt.Errorf("not a Lease: %T", obj)
	}
	s.mu.Lock()
	s.put(lease)
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s ackStore) Update(obj any) error { return s.Add(obj) }

func (s ackStore) Delete(obj any) error {
	lease, ok := obj.(*coordination.Lease)
	if !ok {
		return fmt.Errorf("not a Lease: %T", obj)
	}
	s.mu.Lock()
	s.remove(lease.Name)
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s ackStore) Replace(list []any, _ string) error {
	s.mu.Lock()
	there := map[string]bool{}
	for _, obj := range list {
		lease, ok := obj.(*coordination.Lease)
		if !ok {
			s.mu.Unlock()
			return fmt.Errorf("not a Lease: %T", obj)
		}
		there[lease.Name] = true
		s.put(lease)
	}
	for name := range s.leases {
		if !there[name] {
			s.remove(name)
		}
	}
	s.listed = true
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s ackStore) Resync() error { return nil }
