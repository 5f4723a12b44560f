package kubeletapi

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// clockTick is the unit of /proc/stat: user space sees 100 a second on every
// architecture, whatever the kernel's own tick is.
const clockTick = time.Second / 100

func typesUID(text string) types.UID { return types.UID(text) }

// nodeStats are the machine's own numbers. What cannot be read is left out. Callers
// hold u.mu.
func (u *usage) nodeStats(ctx context.Context, before map[string]sample) stats.NodeStats {
	now := u.config.Clock.Now()
	made := stats.NodeStats{NodeName: u.config.NodeName}
	if text, err := os.ReadFile("/proc/stat"); err == nil {
		busy, boot := parseStat(text)
		made.StartTime = metav1.NewTime(boot)
		made.CPU = &stats.CPUStats{
			Time:                 metav1.NewTime(now),
			UsageCoreNanoSeconds: &busy,
			UsageNanoCores:       u.rate("node", now, busy, before),
		}
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		made.Memory = parseMeminfo(text)
		made.Memory.Time = metav1.NewTime(now)
	}
	made.Runtime = u.imageStore(ctx)
	if made.Runtime != nil && made.Runtime.ImageFs != nil {
		made.Fs = nodeFilesystem(made.Runtime.ImageFs)
	}
	return made
}

// nodeFilesystem is the whole of the filesystem that the image store is part of.
func nodeFilesystem(store *stats.FsStats) *stats.FsStats {
	whole := *store
	if store.CapacityBytes != nil && store.AvailableBytes != nil {
		used := *store.CapacityBytes - *store.AvailableBytes
		whole.UsedBytes = &used
	}
	if store.Inodes != nil && store.InodesFree != nil {
		used := *store.Inodes - *store.InodesFree
		whole.InodesUsed = &used
	}
	return &whole
}

func (u *usage) imageStore(ctx context.Context) *stats.RuntimeStats {
	if u.config.Images == nil {
		return nil
	}
	response, err := u.config.Images.ImageFsInfo(ctx)
	if err != nil {
		u.config.Log.Debug("image store not measured", "err", err)
		return nil
	}
	made := &stats.RuntimeStats{}
	if found := response.GetImageFilesystems(); len(found) > 0 {
		made.ImageFs = filesystem(found[0])
	}
	if found := response.GetContainerFilesystems(); len(found) > 0 {
		made.ContainerFs = filesystem(found[0])
	}
	return made
}

// parseStat reads /proc/stat: the time all processors were busy, in core-nanoseconds
// since boot, and the time of boot.
func parseStat(text []byte) (busy uint64, boot time.Time) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "cpu":
			// user nice system idle iowait irq softirq steal; guest is part of user.
			for i, field := range fields[1:min(len(fields), 9)] {
				if ticks, err := strconv.ParseUint(field, 10, 64); err == nil && i != 3 && i != 4 {
					busy += ticks * uint64(clockTick)
				}
			}
		case "btime":
			if seconds, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				boot = time.Unix(seconds, 0)
			}
		}
	}
	return busy, boot
}

// parseMeminfo reads /proc/meminfo. The working set is what could not be given back at
// once, so that with what is available it makes the whole.
func parseMeminfo(text []byte) *stats.MemoryStats {
	kib := map[string]uint64{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		if number, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
			kib[name] = number
		}
	}
	bytesOf := func(n uint64) *uint64 { n <<= 10; return &n }
	total, free, available := kib["MemTotal"], kib["MemFree"], kib["MemAvailable"]
	return &stats.MemoryStats{
		AvailableBytes:  bytesOf(available),
		UsageBytes:      bytesOf(total - min(free, total)),
		WorkingSetBytes: bytesOf(total - min(available, total)),
		RSSBytes:        bytesOf(kib["AnonPages"]),
	}
}
