package app

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// trim gives back what only the start needed: garbage, and the pages of the
// program file that were read once, such as the 25 MB of the embedded runtime, which
// would count as ours for as long as memory is plenty. Pages that are needed again
// come back from the page cache.
func trim() {
	debug.FreeOSMemory()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	self, err := os.Executable()
	if err != nil {
		return
	}
	for line := range strings.Lines(string(maps)) {
		// 00400000-05a3b000 r-xp 00000000 fe:00 131 /usr/local/bin/mend
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[5] != self || strings.Contains(fields[1], "w") {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil {
			continue
		}
		// A read-only private mapping of a file loses nothing.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
	}
}

// memoryOfCgroup is how many bytes this process's cgroup (v2) may take; all, where it has no
// limit.
func memoryOfCgroup() uint64 {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return math.MaxUint64
	}
	for line := range strings.Lines(string(text)) {
		path, unified := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !unified {
			continue
		}
		limit, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", path, "memory.max"))
		if err != nil {
			break
		}
		if most, err := strconv.ParseUint(strings.TrimSpace(string(limit)), 10, 64); err == nil { // else it is "max"
			return most
		}
	}
	return math.MaxUint64
}
