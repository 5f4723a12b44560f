//go:build !linux

package app

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// trim gives back the garbage of the start.
func trim() { debug.FreeOSMemory() }

// memoryLimit is how many bytes the machine has, 0 where that is not known.
func memoryLimit() uint64 {
	bytes, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return bytes
}
