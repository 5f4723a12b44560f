package app

import (
	"bytes"
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

// memoryLimit is how many bytes there are for this process: the machine's, or fewer where
// its cgroup has a limit.
func memoryLimit() uint64 {
	limit := uint64(math.MaxUint64)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		limit = info.Totalram * uint64(info.Unit)
	}
	cgroups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return limit
	}
	for line := range bytes.Lines(cgroups) {
		path, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("0::"))
		if !ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", string(path), "memory.max"))
		if err != nil {
			continue
		}
		if most, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64); err == nil { // else it is "max"
			limit = min(limit, most)
		}
	}
	return limit
}
