package app

import (
	"os"

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
