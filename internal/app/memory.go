package app

import (
	"os"

	"mend/internal/agent/node"
	"mend/internal/procstat"
)

func pid() int { return os.Getpid() }

// residentBytes is the resident memory of a process, 0 when it is not there.
func residentBytes(pid int) int64 {
	bytes, err := procstat.Resident(pid)
	if err != nil {
		return 0
	}
	return bytes
}

// memoryLimit is how many bytes there are for this process: the machine's, or fewer where
// its cgroup has a limit; 0 where that is not known.
func memoryLimit() uint64 {
	machine, err := node.MachineMemory()
	if err != nil {
		return 0
	}
	return min(uint64(machine), memoryOfCgroup())
}
