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
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	self, err := os.Executable()
	if err != nil {
		return
	}
	for _, m := range unchanged(string(maps), self) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED)
	}
}

type mapping struct{ from, to uintptr }

// unchanged are the mappings of file that lose nothing when they are read from it again.
// To be read-only is not enough: in a program that is linked dynamically, as cgo is, the
// loader writes addresses into pages before it makes them read-only.
func unchanged(smaps, file string) []mapping {
	var found []mapping
	var m mapping
	ours := false
	for line := range strings.Lines(smaps) {
		fields := strings.Fields(line)
		switch {
		// 00400000-05a3b000 r-xp 00000000 fe:00 131 /usr/local/bin/mend
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"):
			_, err := fmt.Sscanf(fields[0], "%x-%x", &m.from, &m.to)
			ours = err == nil && len(fields) == 6 && fields[5] == file && !strings.Contains(fields[1], "w")
		// Anonymous:             0 kB
		case ours && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0":
			found = append(found, m)
		}
	}
	return found
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
