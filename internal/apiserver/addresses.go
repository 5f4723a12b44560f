package apiserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	serviceapi "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"
)

var (
	errIPTaken   = errors.New("provided IP is already allocated")
	errPortTaken = errors.New("provided port is already allocated")
	errFull      = errors.New("range is full")
)

// addressBook says which Service holds which address and node port. It is kept
// in memory only: it is read from the stored Services when it is first needed,
// and this server is the only one that creates Services.
type addressBook struct {
	addresses pool // offsets into cidr
	ports     pool // node ports
	cidr      netip.Prefix
	portRange string

	mu     sync.Mutex
	loaded bool
}

// pool hands out the numbers first…last. Upstream keeps the low part for those
// who ask for a number by themselves as long as there are others.
type pool struct {
	first, dynamic, last int
	holders              map[int]types.UID
}

func newAddressBook(cidr string, ports [2]int) (*addressBook, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil || !prefix.Addr().Is4() || prefix.Bits() > 30 {
		return nil, fmt.Errorf("apiserver: ServiceClusterIPRange %q must be an IPv4 range of at least 4 addresses", cidr)
	}
	if ports[0] < 1 || ports[1] > 65535 || ports[0] > ports[1] {
		return nil, fmt.Errorf("apiserver: ServiceNodePortRange %d-%d must lie within 1-65535", ports[0], ports[1])
	}
	size := 1 << (32 - prefix.Bits())
	return &addressBook{
		cidr:      prefix.Masked(),
		portRange: fmt.Sprintf("%d-%d", ports[0], ports[1]),
		// Offset 0 names the network, 1 is default/kubernetes, the last one is
		// the broadcast address.
		addresses: pool{first: 2, dynamic: 1 + reserve(size, 16, 256), last: size - 2, holders: map[int]types.UID{}},
		ports:     pool{first: ports[0], dynamic: ports[0] + reserve(ports[1]-ports[0]+1, 16, 128), last: ports[1], holders: map[int]types.UID{}},
	}, nil
}

// reserve is how many numbers of a range are kept: a sixteenth of small ones.
func reserve(size, least, most int) int {
	if size <= least {
		return 0
	}
	return min(max(size/16, least), most)
}

// pick takes a free number at random: one that was just released is unlikely to
// come back while somebody still remembers who had it.
func (p *pool) pick(holder types.UID) (int, error) {
	for _, part := range [][2]int{{p.dynamic, p.last}, {p.first, p.dynamic - 1}} {
		size := part[1] - part[0] + 1
		if size <= 0 {
			continue
		}
		start := rand.IntN(size)
		for i := range size {
			number := part[0] + (start+i)%size
			if _, taken := p.holders[number]; !taken {
				p.holders[number] = holder
				return number, nil
			}
		}
	}
	return 0, errFull
}

func (p *pool) release(number int, holder types.UID) {
	if p.holders[number] == holder {
		delete(p.holders, number)
	}
}

// claim is what one write to a Service takes and gives back. It ends in settle.
type claim struct {
	book            *addressBook
	holder          types.UID
	dryRun          bool
	addresses       []int // taken by this write
	ports           []int
	droppedAddress  []int // given back if it succeeds
	droppedNodePort []int
}

// settle keeps what was taken if the write succeeded, and gives it back if not.
func (c *claim) settle(success bool) {
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	addresses, ports := c.droppedAddress, c.droppedNodePort
	if !success || c.dryRun {
		addresses, ports = c.addresses, c.ports
	}
	for _, n := range addresses {
		c.book.addresses.release(n, c.holder)
	}
	for _, n := range ports {
		c.book.ports.release(n, c.holder)
	}
}

// takeAddress takes the address that was asked for, or any.
func (c *claim) takeAddress(asked string, isKubernetes bool) (string, error) {
	b := c.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if asked == "" && !isKubernetes {
		number, err := b.addresses.pick(c.holder)
		if err != nil {
			return "", err
		}
		c.addresses = append(c.addresses, number)
		return b.address(number).String(), nil
	}
	number := 1
	if asked != "" {
		addr, err := netip.ParseAddr(asked)
		if err != nil {
			return "", err
		}
		if number = b.offset(addr); number < 1 || number > b.addresses.last {
			return "", fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", addr, b.cidr)
		}
	}
	if holder, taken := b.addresses.holders[number]; taken && (holder != c.holder || asked == "") {
		return "", errIPTaken
	}
	b.addresses.holders[number] = c.holder
	c.addresses = append(c.addresses, number)
	return b.address(number).String(), nil
}

// takePort takes the node port that was asked for, or any if it is 0.
func (c *claim) takePort(asked int) (int, error) {
	b := c.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if asked == 0 {
		number, err := b.ports.pick(c.holder)
		if err == nil {
			c.ports = append(c.ports, number)
		}
		return number, err
	}
	if asked < b.ports.first || asked > b.ports.last {
		return 0, fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", b.portRange)
	}
	if _, taken := b.ports.holders[asked]; taken {
		return 0, errPortTaken
	}
	b.ports.holders[asked] = c.holder
	c.ports = append(c.ports, asked)
	return asked, nil
}

// dropAll gives back everything that s holds once the write has succeeded.
func (c *claim) dropAll(s *core.Service) {
	c.droppedAddress = append(c.droppedAddress, c.book.addressesOf(s)...)
	c.droppedNodePort = append(c.droppedNodePort, nodePortsOf(s)...)
}

// load reads the stored Services, once.
func (b *addressBook) load(ctx context.Context, services *resource) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loaded {
		return nil
	}
	found, err := services.List(genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), &metainternalversion.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range found.(*core.ServiceList).Items {
		for _, n := range b.addressesOf(&s) {
			b.addresses.holders[n] = s.UID
		}
		for _, n := range nodePortsOf(&s) {
			b.ports.holders[n] = s.UID
		}
	}
	b.loaded = true
	return nil
}

func (b *addressBook) addressesOf(s *core.Service) []int {
	if s.Spec.Type == core.ServiceTypeExternalName {
		return nil
	}
	var numbers []int
	for _, ip := range s.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(ip); err == nil && b.cidr.Contains(addr) {
			numbers = append(numbers, b.offset(addr))
		}
	}
	return numbers
}

// nodePortsOf are the node ports that a Service of its type holds.
func nodePortsOf(s *core.Service) []int {
	var numbers []int
	for _, port := range s.Spec.Ports {
		if port.NodePort != 0 && hasNodePorts(s) {
			numbers = append(numbers, int(port.NodePort))
		}
	}
	if serviceapi.NeedsHealthCheck(s) && s.Spec.HealthCheckNodePort > 0 {
		numbers = append(numbers, int(s.Spec.HealthCheckNodePort))
	}
	return numbers
}

// offset is the address's number in the range, or 0 if it is outside.
func (b *addressBook) offset(addr netip.Addr) int {
	if !b.cidr.Contains(addr) {
		return 0
	}
	base, this := b.cidr.Addr().As4(), addr.As4()
	return int(binary.BigEndian.Uint32(this[:]) - binary.BigEndian.Uint32(base[:]))
}

func (b *addressBook) address(number int) netip.Addr {
	base := b.cidr.Addr().As4()
	var raw [4]byte
	binary.BigEndian.PutUint32(raw[:], binary.BigEndian.Uint32(base[:])+uint32(number))
	return netip.AddrFrom4(raw)
}
