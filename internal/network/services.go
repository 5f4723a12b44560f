package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// servicePool is where the range of Services is looked for. Its first half is what
// kubeadm gives.
var servicePool = netip.MustParsePrefix("10.96.0.0/11")

// serviceBits is the length of a range of Services: 16,382 addresses.
const serviceBits = 18

func (c Config) serviceFile() string { return filepath.Join(c.cniDir(), "servicecidr") }

// ServiceRange is the instance's range of Service addresses: the one chosen earlier, or
// a new choice that the machine has no route into. Services keep their addresses, so a
// range once chosen stays, whatever routes come later. It needs no privileges.
func ServiceRange(cfg Config) (netip.Prefix, error) {
	if b, err := os.ReadFile(cfg.serviceFile()); err == nil {
		kept, err := netip.ParsePrefix(strings.TrimSpace(string(b)))
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%s: %w", cfg.serviceFile(), err)
		}
		return kept, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return netip.Prefix{}, err
	}
	taken, err := takenRanges(cfg.bridge())
	if err != nil {
		return netip.Prefix{}, err
	}
	chosen, ok := chooseServiceRange(cfg.InstanceID, append(taken, cfg.Avoid...))
	if !ok {
		return netip.Prefix{}, fmt.Errorf("every part of %v, where Services get their addresses, overlaps a route of this machine", servicePool)
	}
	if err := os.MkdirAll(cfg.cniDir(), 0o700); err != nil {
		return netip.Prefix{}, err
	}
	return chosen, writeDurably(cfg.serviceFile(), chosen.String()+"\n")
}

// chooseServiceRange picks a free part of the pool. Where the search begins follows from
// the instance's id: an instance that is down shows no route, and must not be met.
func chooseServiceRange(instanceID string, taken []netip.Prefix) (netip.Prefix, bool) {
	n, err := strconv.ParseUint(instanceID, 16, 64)
	if err != nil {
		n = 0 // an id that is not hex: start at the first
	}
	parts := uint64(1) << (serviceBits - servicePool.Bits())
	for i := range parts {
		b := servicePool.Addr().As4()
		// Part k of a /18 begins 64·k further in the third byte: part 5 of 10.96.0.0/11 is
		// 10.97.64.0/18.
		k := (n + i) % parts
		b[1] += byte(k >> 2)
		b[2] = byte(k&3) << 6
		if p := netip.PrefixFrom(netip.AddrFrom4(b), serviceBits); overlaps(p, taken) == nil {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// writeDurably writes a file that is there as a whole, or not at all, also after a
// power cut: the API's state relies on it.
func writeDurably(path, text string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(text)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
