package bench

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"mend/internal/procstat"
)

// Spread is a distribution, in seconds.
type Spread struct {
	Count  int     `json:"count"`
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

// spread of at least one time. With fewer than 100 the 99th percentile is the
// maximum.
func spread(times []time.Duration) *Spread {
	sorted := slices.Sorted(slices.Values(times))
	at := func(quantile float64) float64 {
		index := int(quantile * float64(len(sorted)))
		return sorted[min(index, len(sorted)-1)].Seconds()
	}
	return &Spread{Count: len(sorted), Min: at(0), Median: at(0.5), P99: at(0.99), Max: at(1)}
}

// ProcessAccount is what one process took while the bench ran. Memory is
// resident bytes.
type ProcessAccount struct {
	PID        int     `json:"pid"`
	Command    string  `json:"command"`
	PeakBytes  int64   `json:"peakBytes"`
	CPUSeconds float64 `json:"cpuSeconds"`
}

type accounts struct {
	list    []ProcessAccount
	stopped chan struct{}
	done    chan struct{}
}

// startAccounts samples the processes' memory until end.
func startAccounts(pids []int) *accounts {
	a := &accounts{stopped: make(chan struct{}), done: make(chan struct{})}
	for _, pid := range pids {
		cpu, _ := cpuSeconds(pid)
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		a.list = append(a.list, ProcessAccount{PID: pid, Command: strings.TrimSpace(string(command)), CPUSeconds: -cpu})
	}
	go a.sample()
	return a
}

func (a *accounts) sample() {
	defer close(a.done)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		for i := range a.list {
			a.list[i].PeakBytes = max(a.list[i].PeakBytes, residentBytes(a.list[i].PID))
		}
		select {
		case <-ticker.C:
		case <-a.stopped:
			return
		}
	}
}

func (a *accounts) end() []ProcessAccount {
	close(a.stopped)
	<-a.done
	for i := range a.list {
		cpu, err := cpuSeconds(a.list[i].PID)
		if err == nil {
			a.list[i].CPUSeconds += cpu
		}
	}
	return a.list
}

// cpuSeconds is user and system time of the process.
func cpuSeconds(pid int) (float64, error) {
	used, err := procstat.CPU(pid)
	return used.Seconds(), err
}

// residentBytes is 0 for a process that is not there.
func residentBytes(pid int) int64 {
	bytes, err := procstat.Resident(pid)
	if err != nil {
		return 0
	}
	return bytes
}

// Print writes the result as a table for people.
func (r Result) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%d replicas in %d Deployments on %s\n", r.Replicas, r.Deployments, r.Server)
	for _, step := range r.Steps {
		fmt.Fprintf(table, "%s\t%.2f s\t%.0f Pods/s\t\n", step.Name, step.Seconds, step.PerPod)
	}
	printSpread(table, "heal", r.Heal)
	for _, requests := range r.Requests {
		fmt.Fprintf(table, "%s\t%.0f/s\t\t\n", requests.Name, requests.PerSecond)
	}
	printSpread(table, "write to watch event", r.Watch)
	for _, process := range r.Processes {
		fmt.Fprintf(table, "%s (pid %d)\t%d MiB peak\t%.2f s CPU\t\n", process.Command, process.PID, process.PeakBytes>>20, process.CPUSeconds)
	}
	return table.Flush()
}

func printSpread(out io.Writer, name string, s *Spread) {
	if s != nil {
		fmt.Fprintf(out, "%s\t%.1f ms median\tmin %.1f, p99 %.1f, max %.1f (n=%d)\t\n", name, s.Median*1000, s.Min*1000, s.P99*1000, s.Max*1000, s.Count)
	}
}
