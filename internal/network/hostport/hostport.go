// Package hostport keeps the ports of the host that lead to a Pod: two nftables maps
// in the instance's table of each family, one for ports on any of the host's addresses, one for ports
// on a given one. The rules that look them up are made with the table, once; a Pod
// only adds and removes elements.
package hostport

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"
)

// Names of the maps.
const (
	AnyMap  = "hostports-any"
	AddrMap = "hostports-addr"
	// HairpinSet holds each Pod with a host port as source and destination.
	HairpinSet = "hostports-hairpin"
)

// Mapping is one port of the host and the Pod's port that it leads to, as CNI's
// portMappings capability has it. Protocol is tcp (also when empty), udp or sctp.
type Mapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// Maps describes the two maps of a table, to create them or to look them up in rules.
func Maps(table *nftables.Table) (byAny, byAddr *nftables.Set) {
	address := addressType(table)
	target := nftables.MustConcatSetType(address, nftables.TypeInetService)
	byAny = &nftables.Set{
		Table: table, Name: AnyMap, IsMap: true, Concatenation: true, DataType: target,
		KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
	}
	byAddr = &nftables.Set{
		Table: table, Name: AddrMap, IsMap: true, Concatenation: true, DataType: target,
		KeyType: nftables.MustConcatSetType(address, nftables.TypeInetProto, nftables.TypeInetService),
	}
	return byAny, byAddr
}

// Hairpin describes the set of Pods that may reach themselves through a host port.
func Hairpin(table *nftables.Table) *nftables.Set {
	address := addressType(table)
	return &nftables.Set{Table: table, Name: HairpinSet, Concatenation: true, KeyType: nftables.MustConcatSetType(address, address)}
}

func addressType(table *nftables.Table) nftables.SetDatatype {
	if table.Family == nftables.TableFamilyIPv6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

func hairpin(pod netip.Addr) []nftables.SetElement {
	return []nftables.SetElement{{Key: append(pod.AsSlice(), pod.AsSlice()...)}}
}

// Table describes an instance's table of IPv4, Table6 that of IPv6.
func Table(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyIPv4}
}

// Table6 describes an instance's table of IPv6.
func Table6(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyIPv6}
}

func tableOf(name string, pod netip.Addr) *nftables.Table {
	if pod.Is6() {
		return Table6(name)
	}
	return Table(name)
}

// protocols are those of Kubernetes' container ports.
var protocols = map[string]byte{"": unix.IPPROTO_TCP, "tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

// Add leads the mappings' ports to a Pod with these addresses, one of each family. Mappings
// without a host port are skipped. It fails when another Pod has one of the ports; then
// none is added.
func Add(table string, pod []netip.Addr, mappings []Mapping) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	wanted := false
	for _, address := range pod {
		added, err := addTo(c, tableOf(table, address), address, len(pod) > 1, mappings)
		if err != nil {
			return err
		}
		wanted = wanted || added
	}
	if !wanted {
		return nil
	}
	err = c.Flush()
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("a host port of %s belongs to another Pod already", describe(mappings))
	}
	if err != nil {
		return fmt.Errorf("add host ports %s: %w", describe(mappings), err)
	}
	return nil
}

// addTo adds to the transaction what leads to the Pod's address, and says whether that is
// anything.
func addTo(c *nftables.Conn, table *nftables.Table, pod netip.Addr, dual bool, mappings []Mapping) (bool, error) {
	var anyElements, addrElements []nftables.SetElement
	for _, m := range mappings {
		if m.HostPort == 0 {
			continue
		}
		e, kind, err := element(pod, dual, m)
		switch {
		case err != nil:
			return false, err
		case kind == onAddress:
			addrElements = append(addrElements, e)
		case kind == onAny:
			anyElements = append(anyElements, e)
		}
	}
	if len(anyElements)+len(addrElements) == 0 {
		return false, nil
	}
	byAny, byAddr := Maps(table)
	return true, errors.Join(addElements(c, byAny, anyElements), addElements(c, byAddr, addrElements),
		addElements(c, Hairpin(table), hairpin(pod)))
}

func addElements(c *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	if len(elements) == 0 {
		return nil
	}
	return c.SetAddElements(set, elements)
}

// where says in which map a mapping has its place.
type where int

const (
	nowhere where = iota // it is for the other family
	onAny
	onAddress
)

// element encodes a mapping: each part of a concatenation is padded to four bytes. One that
// names an address is for the Pod's address of that family, "0.0.0.0" and "::" too where
// the Pod has both.
func element(pod netip.Addr, dual bool, m Mapping) (e nftables.SetElement, kind where, err error) {
	proto, ok := protocols[strings.ToLower(m.Protocol)]
	if !ok {
		return e, nowhere, fmt.Errorf("host port %d: unknown protocol %q", m.HostPort, m.Protocol)
	}
	key, kind := append([]byte{proto, 0, 0, 0}, port(m.HostPort)...), onAny
	if m.HostIP != "" {
		a, err := netip.ParseAddr(m.HostIP)
		switch {
		case err != nil:
			return e, nowhere, fmt.Errorf("host port %d: host IP %q: %w", m.HostPort, m.HostIP, err)
		case dual && a.Is6() != pod.Is6():
			return e, nowhere, nil
		case a.Is6() && !pod.Is6() && !a.IsUnspecified():
			return e, nowhere, fmt.Errorf("host port %d: host IP %s: Pods have no IPv6 addresses", m.HostPort, a)
		case !a.IsUnspecified():
			key, kind = append(a.AsSlice(), key...), onAddress
		}
	}
	return nftables.SetElement{Key: key, Val: append(pod.AsSlice(), port(m.ContainerPort)...)}, kind, nil
}

func port(n uint16) []byte { return append(binaryutil.BigEndian.PutUint16(n), 0, 0) }

func describe(mappings []Mapping) string {
	var parts []string
	for _, m := range mappings {
		if m.HostPort != 0 {
			parts = append(parts, fmt.Sprintf("%s:%d", m.HostIP, m.HostPort))
		}
	}
	return strings.Join(parts, ", ")
}

// Remove takes away every port that leads to a Pod with these addresses. It needs no list
// of the ports, so that nothing has to be remembered for it. A table that is gone is no
// error.
func Remove(table string, pod ...netip.Addr) error {
	var all error
	for _, address := range pod {
		all = errors.Join(all, removeFrom(tableOf(table, address), address))
	}
	return all
}

func removeFrom(table *nftables.Table, pod netip.Addr) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	byAny, byAddr := Maps(table)
	found := false
	for _, set := range []*nftables.Set{byAny, byAddr} {
		elements, err := c.GetSetElements(set)
		if isMissing(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list host ports: %w", err)
		}
		var gone []nftables.SetElement
		for _, e := range elements {
			if bytes.HasPrefix(e.Val, pod.AsSlice()) {
				gone = append(gone, e)
			}
		}
		if len(gone) > 0 {
			found = true
			if err := c.SetDeleteElements(set, gone); err != nil {
				return err
			}
		}
	}
	if !found {
		return nil
	}
	if err := c.SetDeleteElements(Hairpin(table), hairpin(pod)); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove the host ports of %v: %w", pod, err)
	}
	return nil
}

// isMissing recognises "no such table or map". The library hides the error number when
// it lists elements, so its text has to do as well.
func isMissing(err error) bool {
	return err != nil && (errors.Is(err, os.ErrNotExist) || strings.HasSuffix(err.Error(), unix.ENOENT.Error()))
}
