package node

import (
	"os"
	"strconv"
	"strings"
)

// memInfo in bytes.
func memInfo() (total, swap, available int64, err error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, 0, err
	}
	for _, line := range strings.Split(string(raw), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "MemTotal:":
			total = kib << 10
		case "SwapTotal:":
			swap = kib << 10
		case "MemAvailable:":
			available = kib << 10
		}
	}
	return total, swap, available, nil
}
