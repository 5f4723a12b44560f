//go:build !linux

package app

import "runtime/debug"

// trim gives back the garbage of the start.
func trim() { debug.FreeOSMemory() }
