package doctor

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mend/internal/instance"
)

// observeKernel asks for what real containers need.
func (seen *Observed) observeKernel() {
	if seen.OwnRuntime {
		seen.ExecError = instance.CheckExec(seen.DataDir)
	}
	seen.CgroupVersion, seen.Controllers = cgroups("/sys/fs/cgroup", "/proc/self/cgroup")
	seen.FileSystems = fileSystems("/proc/filesystems")
	seen.NetworkFeatures = networkFeatures(seen.Root)
}

// networkFeatures asks the kernel in a network namespace of its own, which ends
// with the thread, so nothing is left on the host.
func networkFeatures(root bool) map[string]error {
	if !root {
		return nil
	}
	results := make(chan map[string]error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			results <- map[string]error{"network namespaces": err}
			return
		}
		results <- probeLinks()
	}()
	return <-results
}

// probeLinks makes one of each thing that the Pod network needs.
func probeLinks() map[string]error {
	features := map[string]error{
		"bridge": asked("bridge", netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe"}})),
		"veth":   asked("veth", netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}, PeerName: "probe1"})),
	}
	conn, err := nftables.New()
	if err != nil {
		features["nf_tables"] = errNotAsked
		return features
	}
	conn.AddTable(&nftables.Table{Name: "probe", Family: nftables.TableFamilyINet})
	features["nf_tables"] = asked("nf_tables", conn.Flush())
	return features
}

// errNotAsked stands for a kernel that could not be asked at all.
var errNotAsked = errors.New("the kernel could not be asked")

func asked(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
