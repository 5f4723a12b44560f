// Package ipam hands out one node's Pod addresses.
//
// A reservation is an empty file whose name says everything: address, container and
// interface. The folder carries the kernel's boot id, because a network namespace does
// not outlive its kernel: after a reboot every reservation is void, and the folder of
// the earlier boot is removed. For the same reason nothing is synced to disk: what a
// power cut could lose, it has made worthless. Within a boot the page cache is enough,
// whichever process is killed.
//
// Addresses are handed out in turn, not lowest first, so that a Pod's address is not
// at once another Pod's.
package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrExhausted says that every address of the range is taken.
var ErrExhausted = errors.New("no free address")

const (
	lockName = "lock"
	lastName = "last"
)

// Reservation is one address and the interface that has it.
type Reservation struct {
	Address     netip.Addr
	ContainerID string
	Interface   string
}

func (r Reservation) fileName() string {
	return r.Address.String() + "@" + r.ContainerID + "@" + r.Interface
}

func parseName(name string) (Reservation, bool) {
	parts := strings.Split(name, "@")
	if len(parts) != 3 {
		return Reservation{}, false
	}
	a, err := netip.ParseAddr(parts[0])
	return Reservation{Address: a, ContainerID: parts[1], Interface: parts[2]}, err == nil
}

// Pool is one node's range of addresses. Its methods may be called from several
// processes at once; each holds the folder's lock while it runs, which is for
// well under a millisecond.
type Pool struct {
	dir    string
	subnet netip.Prefix
}

// Open returns the pool that keeps its files below dir. The subnet's first address is
// the gateway's and its last the broadcast address: neither is handed out.
func Open(dir string, subnet netip.Prefix) (*Pool, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if !subnet.IsValid() || subnet.Bits() > subnet.Addr().BitLen()-2 {
		return nil, fmt.Errorf("the Pod range %v has no room for a gateway and a Pod", subnet)
	}
	p := &Pool{dir: filepath.Join(dir, boot), subnet: subnet.Masked()}
	if _, err := os.Stat(p.dir); err == nil {
		return p, nil
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	return p, removeOlder(dir, boot)
}

func removeOlder(dir, boot string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != boot {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the kernel's boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Gateway is the first address of the subnet.
func (p *Pool) Gateway() netip.Addr { return Gateway(p.subnet) }

// Gateway is the first address of a subnet: the bridge's.
func Gateway(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }

// Reserve gives an interface an address. An interface that has one already gets the
// same again, so that a repeated ADD leaks nothing. It returns ErrExhausted when none
// is free.
func (p *Pool) Reserve(containerID, ifname string) (netip.Addr, error) {
	if containerID == "" || ifname == "" || strings.ContainsAny(containerID+ifname, "@/") {
		return netip.Addr{}, fmt.Errorf("cannot reserve an address for container %q, interface %q", containerID, ifname)
	}
	unlock, err := p.lock()
	if err != nil {
		return netip.Addr{}, err
	}
	defer unlock()
	all, err := p.list()
	if err != nil {
		return netip.Addr{}, err
	}
	taken := make(map[netip.Addr]bool, len(all))
	for _, r := range all {
		if r.ContainerID == containerID && r.Interface == ifname {
			return r.Address, nil
		}
		taken[r.Address] = true
	}
	address, ok := nextFree(p.subnet, p.last(), taken)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%w in %v: %d are in use", ErrExhausted, p.subnet, len(all))
	}
	r := Reservation{Address: address, ContainerID: containerID, Interface: ifname}
	f, err := os.OpenFile(filepath.Join(p.dir, r.fileName()), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return netip.Addr{}, err
	}
	f.Close()
	// Only a hint where to search next: an unreadable one means the start.
	return address, os.WriteFile(filepath.Join(p.dir, lastName), []byte(address.String()), 0o600)
}

// nextFree is the first free address after last, round the subnet once.
func nextFree(subnet netip.Prefix, last netip.Addr, taken map[netip.Addr]bool) (netip.Addr, bool) {
	gateway := Gateway(subnet)
	a := last
	if !subnet.Contains(a) {
		a = gateway
	}
	for start := a; ; {
		a = a.Next()
		// The last address of an IPv4 subnet is its broadcast address.
		if !subnet.Contains(a) || (a.Is4() && !subnet.Contains(a.Next())) {
			a = gateway
		}
		if a != gateway && !taken[a] {
			return a, true
		}
		if a == start {
			return netip.Addr{}, false
		}
	}
}

// last is the address handed out last, or an invalid one.
func (p *Pool) last() netip.Addr {
	b, err := os.ReadFile(filepath.Join(p.dir, lastName))
	if err != nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(string(b))
	return a
}

// Release frees the address of an interface and returns it; an invalid address says
// that there was none, which is no error.
func (p *Pool) Release(containerID, ifname string) (netip.Addr, error) {
	var freed netip.Addr
	_, err := p.ReleaseIf(func(r Reservation) bool {
		match := r.ContainerID == containerID && r.Interface == ifname
		if match {
			freed = r.Address
		}
		return match
	})
	return freed, err
}

// ReleaseIf frees every reservation for which unwanted returns true and returns them.
func (p *Pool) ReleaseIf(unwanted func(Reservation) bool) ([]Reservation, error) {
	unlock, err := p.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := p.list()
	if err != nil {
		return nil, err
	}
	var freed []Reservation
	for _, r := range all {
		if !unwanted(r) {
			continue
		}
		if err := os.Remove(filepath.Join(p.dir, r.fileName())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return freed, err
		}
		freed = append(freed, r)
	}
	return freed, nil
}

// List returns every reservation, sorted by file name.
func (p *Pool) List() ([]Reservation, error) {
	unlock, err := p.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return p.list()
}

func (p *Pool) list() ([]Reservation, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	all := make([]Reservation, 0, len(entries))
	for _, e := range entries {
		if r, ok := parseName(e.Name()); ok {
			all = append(all, r)
		}
	}
	return all, nil
}

// lock takes the folder's lock; it ends with the process that holds it.
func (p *Pool) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(p.dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the address pool: %w", err)
	}
	return func() { f.Close() }, nil
}
