package doctor

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mend/internal/instance"
)

// Wanted is what the mend to be started needs.
type Wanted struct {
	DataDir    string
	APIAddress string // host:port; port 0 means any free one
	Containers bool   // false with --simulate
	OwnRuntime bool   // false with --runtime-endpoint
}

// Observed is what was read off the machine. Sizes are in bytes.
type Observed struct {
	Wanted
	OS              string
	Root            bool
	CgroupVersion   int // 0: none mounted
	Controllers     []string
	FileSystems     []string
	NetworkFeatures map[string]error // nf_tables, bridge, veth: nil when usable
	PortError       error
	ExecError       error
	WriteError      error
	DiskFree        uint64
	DiskKnown       bool
	// HasState is set when the data directory holds a state already.
	HasState bool
}

// writeAndSearch is W_OK and X_OK of access(2).
const writeAndSearch = 2 | 1

// Observe reads the machine. It changes nothing on it: the data directory is
// probed at its nearest existing parent.
func Observe(want Wanted) Observed {
	seen := Observed{Wanted: want, OS: runtime.GOOS, Root: os.Geteuid() == 0}
	seen.PortError = tryListen(want.APIAddress)
	parent := nearestExisting(want.DataDir)
	seen.WriteError = unix.Access(parent, writeAndSearch)
	_, err := instance.Find(want.DataDir)
	seen.HasState = err == nil
	var stat unix.Statfs_t
	if unix.Statfs(parent, &stat) == nil {
		seen.DiskKnown, seen.DiskFree = true, stat.Bavail*uint64(stat.Bsize)
	}
	if want.Containers {
		seen.observeKernel()
	}
	return seen
}

func tryListen(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return listener.Close()
}

func nearestExisting(dir string) string {
	for probe := filepath.Clean(dir); ; probe = filepath.Dir(probe) {
		if _, err := os.Stat(probe); err == nil || probe == filepath.Dir(probe) {
			return probe
		}
	}
}

// cgroups reads the version and the controllers that are mounted (v1) or
// delegated (v2).
func cgroups(root, self string) (version int, controllers []string) {
	if text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		return 2, strings.Fields(string(text))
	}
	text, err := os.ReadFile(self)
	if err != nil {
		return 0, nil
	}
	for line := range strings.Lines(string(text)) {
		// 4:memory:/path
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 || fields[1] == "" {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			if _, err := os.Stat(filepath.Join(root, controller)); err == nil {
				controllers = append(controllers, controller)
			}
		}
	}
	if len(controllers) == 0 {
		return 0, nil
	}
	slices.Sort(controllers)
	return 1, controllers
}

func fileSystems(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 0 {
			names = append(names, fields[len(fields)-1])
		}
	}
	return names
}
