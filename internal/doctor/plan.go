package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// minDisk is below what unpacking the runtime and a few images takes.
const minDisk = 512 << 20

// Problem is one thing in the way, and what a person can do about it.
type Problem struct {
	What string
	Mend string
}

// String is the problem's one line.
func (p Problem) String() string { return p.What + ": " + p.Mend }

// Examine judges what was observed. The result is in the order in which a person
// would go about it, and empty when mend can run.
func Examine(seen Observed) []Problem {
	if seen.Containers && seen.OS != "linux" {
		return []Problem{{"containers need Linux, this is " + seen.OS, "use --simulate 1, or a Linux machine"}}
	}
	var problems []Problem
	if seen.Containers && !seen.Root {
		problems = append(problems, Problem{"not root", "run it with sudo, or without containers: mend up --simulate 1"})
	}
	problems = append(problems, examineFiles(seen)...)
	problems = append(problems, examinePort(seen)...)
	if seen.Containers {
		problems = append(problems, examineCgroups(seen)...)
		problems = append(problems, examineKernel(seen)...)
	}
	return problems
}

func examineFiles(seen Observed) []Problem {
	var problems []Problem
	// Somebody without root is told that first; the rest follows from it.
	if seen.WriteError != nil && (seen.Root || !seen.Containers) {
		problems = append(problems, Problem{
			fmt.Sprintf("data directory %s is not writable (%v)", seen.DataDir, seen.WriteError),
			"give yourself the right, or name another with --data-dir"})
	}
	if seen.ExecError != nil {
		what, mend, _ := strings.Cut(seen.ExecError.Error(), ": ")
		problems = append(problems, Problem{what, mend})
	}
	// What is there already starts on a full disk too: Pods run on, and the API is
	// read-only until there is room.
	if seen.DiskKnown && seen.DiskFree < minDisk && !seen.HasState {
		problems = append(problems, Problem{
			fmt.Sprintf("%d MiB are free for %s, %d MiB are needed", seen.DiskFree>>20, seen.DataDir, minDisk>>20),
			"free some space, or name another place with --data-dir"})
	}
	return problems
}

func examinePort(seen Observed) []Problem {
	switch {
	case seen.PortError == nil:
		return nil
	case errors.Is(seen.PortError, syscall.EADDRINUSE):
		return []Problem{{fmt.Sprintf("address %s is taken by another program", seen.APIAddress),
			"end that program, or choose another with --api-port (0 takes a free one)"}}
	default:
		return []Problem{{fmt.Sprintf("address %s cannot be listened on (%v)", seen.APIAddress, seen.PortError),
			"choose another with --api-port"}}
	}
}

func examineCgroups(seen Observed) []Problem {
	if seen.CgroupVersion == 0 {
		return []Problem{{"no cgroup file system is mounted at /sys/fs/cgroup",
			"mount it: mount -t cgroup2 none /sys/fs/cgroup"}}
	}
	needed := []string{"cpu", "cpuset", "memory", "pids"}
	if seen.CgroupVersion == 1 {
		needed = append(needed, "cpuacct", "devices", "freezer")
	}
	var problems []Problem
	for _, controller := range needed {
		if !slices.Contains(seen.Controllers, controller) {
			problems = append(problems, Problem{
				fmt.Sprintf("cgroup controller %s is missing (v%d)", controller, seen.CgroupVersion),
				controllerMend(controller)})
		}
	}
	return problems
}

func controllerMend(controller string) string {
	if controller == "memory" {
		return "add cgroup_enable=memory cgroup_memory=1 to the kernel's command line and reboot"
	}
	return "enable it in the kernel, or in the container this runs in; with systemd set Delegate=yes"
}

func examineKernel(seen Observed) []Problem {
	var problems []Problem
	if seen.OwnRuntime && !slices.Contains(seen.FileSystems, "overlay") {
		problems = append(problems, Problem{"the kernel has no overlay file system loaded", "modprobe overlay"})
	}
	features := make([]string, 0, len(seen.NetworkFeatures))
	for name, err := range seen.NetworkFeatures {
		if err != nil {
			features = append(features, name)
		}
	}
	slices.Sort(features)
	for _, name := range features {
		problems = append(problems, Problem{
			fmt.Sprintf("the kernel refuses %s (%v)", name, seen.NetworkFeatures[name]),
			"modprobe " + strings.ReplaceAll(name, " ", "_")})
	}
	return problems
}
