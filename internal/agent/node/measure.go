package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Machine is what does not change while the agent runs.
type Machine struct {
	Capacity v1.ResourceList
	Info     v1.NodeSystemInfo // without the runtime's version
}

// containerOS is that of the containers, on whatever system their node is simulated: a
// Pod that asks for Linux finds its node there too.
const containerOS = "linux"

// Pressure is what may run out on a machine.
type Pressure struct{ Memory, Disk, PID bool }

// Thresholds. Memory and inodes are the kubelet's; for disk space a bound is added,
// because a tenth of a large disk is not scarcity, and nothing would be evicted to
// relieve it.
const (
	memoryThreshold = 100 << 20
	diskThreshold   = 2 << 30
)

// MachineMemory is how many bytes the machine has.
func MachineMemory() (int64, error) {
	total, _, _, err := memInfo()
	return total, err
}

// Measure looks at the machine. dir is where Pods' files are; maxPods the number
// of Pods it takes.
func Measure(dir string, maxPods int) (Machine, error) {
	memory, swap, _, err := memInfo()
	if err != nil {
		return Machine{}, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(existing(dir), &fs); err != nil {
		return Machine{}, fmt.Errorf("size of the file system of %s: %w", dir, err)
	}
	m := Machine{Capacity: v1.ResourceList{
		v1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(memory, resource.BinarySI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(int64(fs.Blocks)*int64(fs.Bsize), resource.BinarySI),
		v1.ResourcePods:             *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
	}}
	addHugePages(m.Capacity)
	m.Info = systemInfo()
	if swap > 0 {
		m.Info.Swap = &v1.NodeSwapStatus{Capacity: &swap}
	}
	return m, nil
}

// existing is dir or its nearest parent that exists.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

func addHugePages(capacity v1.ResourceList) {
	dirs, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil {
		return
	}
	for _, dir := range dirs {
		size := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB")
		kib, err := strconv.ParseInt(size, 10, 64)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(readLine(filepath.Join(dir, "nr_hugepages")), 10, 64)
		if err != nil {
			continue
		}
		page := resource.NewQuantity(kib<<10, resource.BinarySI)
		capacity[v1.ResourceName(v1.ResourceHugePagesPrefix+page.String())] = *resource.NewQuantity(n*kib<<10, resource.BinarySI)
	}
}

func systemInfo() v1.NodeSystemInfo {
	info := v1.NodeSystemInfo{
		MachineID:       readLine("/etc/machine-id"),
		SystemUUID:      readLine("/sys/class/dmi/id/product_uuid"),
		BootID:          readLine("/proc/sys/kernel/random/boot_id"),
		OSImage:         osImage(),
		OperatingSystem: containerOS,
		Architecture:    runtime.GOARCH,
	}
	if info.SystemUUID == "" {
		info.SystemUUID = info.MachineID
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		info.KernelVersion = string(bytes.TrimRight(name.Release[:], "\x00"))
	}
	return info
}

func osImage() string {
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(raw), "\n") {
			if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				return strings.Trim(name, `"'`)
			}
		}
	}
	return "Unknown"
}

func readLine(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// measurePressure looks at what is left; what cannot be measured is no pressure.
func measurePressure(dir string) Pressure {
	var p Pressure
	if _, _, available, err := memInfo(); err == nil {
		p.Memory = available < memoryThreshold
	}
	var fs unix.Statfs_t
	if unix.Statfs(existing(dir), &fs) == nil {
		block := int64(fs.Bsize)
		free, size := int64(fs.Bavail)*block, int64(fs.Blocks)*block
		p.Disk = free < min(size/10, diskThreshold) || (fs.Files > 0 && fs.Ffree < fs.Files/20)
	}
	return p
}
