package dns

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Batch is a change of the view. It takes effect as a whole.
type Batch struct {
	// Full says that Put are all Services that there are.
	Full bool `json:"full,omitempty"`
	// Put are Services as they are now, Delete those that are gone.
	Put    []Service `json:"put,omitempty"`
	Delete []Key     `json:"delete,omitempty"`
	// Version is given back when the batch has taken effect.
	Version uint64 `json:"version"`
	// Stop ends the program instead.
	Stop bool `json:"stop,omitempty"`
	// Hand asks for the program's own sockets instead, UDP and TCP, which come as rights
	// (SCM_RIGHTS) with the answer. Another program that has them too loses no question.
	Hand bool `json:"hand,omitempty"`
}

// Key names a Service.
type Key struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Service is what names show of a Service. A headless one has endpoints and no
// addresses, an ExternalName neither.
type Service struct {
	Key
	Addresses []netip.Addr `json:"addresses,omitempty"`
	External  string       `json:"external,omitempty"`
	Ports     []Port       `json:"ports,omitempty"`
	Endpoints []Endpoint   `json:"endpoints,omitempty"`
}

// Port is a named port. Protocol is in lower case.
type Port struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
}

// Endpoint is a Pod of a headless Service.
type Endpoint struct {
	Address  netip.Addr `json:"address"`
	Hostname string     `json:"hostname,omitempty"`
	Ports    []Port     `json:"ports,omitempty"`
}

// host is the first label of the endpoint's name: its hostname, or its address.
func (e Endpoint) host() string {
	if e.Hostname != "" {
		return e.Hostname
	}
	return dashed(e.Address)
}

// dashed is an address as one label.
func dashed(a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

// undash is the address that a label stands for.
func undash(label string) (netip.Addr, bool) {
	for _, separator := range []string{".", ":"} {
		if a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", separator)); err == nil {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// view is what is known of the cluster. It is safe for concurrent use.
type view struct {
	mu       sync.RWMutex
	known    bool
	serial   uint32
	services map[string]map[string]*Service // namespace → name
	reverse  map[netip.Addr][]pointer
}

// pointer is a name of an address: of a Service, or of an endpoint of one.
type pointer struct {
	Key
	host string
}

func newView() *view {
	return &view{services: map[string]map[string]*Service{}, reverse: map[netip.Addr][]pointer{}}
}

// apply makes a batch take effect.
func (v *view) apply(b Batch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if b.Full {
		v.services, v.reverse = map[string]map[string]*Service{}, map[netip.Addr][]pointer{}
		v.known = true
	}
	for _, key := range b.Delete {
		v.remove(key)
	}
	for i := range b.Put {
		v.remove(b.Put[i].Key)
		v.add(&b.Put[i])
	}
	v.serial++
}

func (v *view) add(s *Service) {
	if v.services[s.Namespace] == nil {
		v.services[s.Namespace] = map[string]*Service{}
	}
	v.services[s.Namespace][s.Name] = s
	for address, p := range pointers(s) {
		v.reverse[address] = append(v.reverse[address], p)
	}
}

func (v *view) remove(key Key) {
	s := v.services[key.Namespace][key.Name]
	if s == nil {
		return
	}
	delete(v.services[key.Namespace], key.Name)
	if len(v.services[key.Namespace]) == 0 {
		delete(v.services, key.Namespace)
	}
	for address := range pointers(s) {
		v.reverse[address] = slices.DeleteFunc(v.reverse[address], func(p pointer) bool { return p.Key == key })
		if len(v.reverse[address]) == 0 {
			delete(v.reverse, address)
		}
	}
}

// pointers are the names that a Service gives to addresses.
func pointers(s *Service) map[netip.Addr]pointer {
	all := map[netip.Addr]pointer{}
	for _, a := range s.Addresses {
		all[a] = pointer{Key: s.Key}
	}
	for _, e := range s.Endpoints {
		all[e.Address] = pointer{Key: s.Key, host: e.host()}
	}
	return all
}
