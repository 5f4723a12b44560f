package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"mend/internal/procstat"
)

const (
	limit    = 30 * time.Minute
	replicas = 10
	heals    = 40
	floors   = 40
	crashes  = 20
	starts   = 5
	// settleTime lets end what a start leaves for later, such as the OpenAPI
	// documents; quietTime is what is measured.
	settleTime = 20 * time.Second
	quietTime  = time.Minute
)

func main() {
	mend := flag.String("mend", "bin/mend", "the mend to measure")
	urls := flag.String("ask", "", "be the client that asks these two URLs in turns (the program starts itself so)")
	kept := flag.Bool("kept", false, "with --ask: keep connections")
	traffic := flag.Bool("traffic", false, "measure only the ways to a Pod")
	flag.Parse()
	err := error(nil)
	switch {
	case *urls != "":
		err = askAndTell(context.Background(), strings.Split(*urls, ","), *kept)
	case *traffic:
		err = run(*mend, (*rig).waysOnly)
	default:
		err = run(*mend, (*rig).starts, (*rig).rest, (*rig).heal, (*rig).killed)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run takes the steps on a mend that is gone at the end.
func run(mend string, steps ...func(*rig, context.Context) error) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if mend, err = filepath.Abs(mend); err != nil {
		return err
	}
	r := &rig{mend: mend}
	defer func() { err = errors.Join(err, r.down()) }()
	for _, step := range steps {
		if err := step(r, ctx); err != nil {
			return err
		}
	}
	return nil
}

// rig is a mend of its own in a directory of its own.
type rig struct {
	mend, dir string
}

func (r *rig) data() string       { return filepath.Join(r.dir, "data") }
func (r *rig) kubeconfig() string { return filepath.Join(r.dir, "kubeconfig") }

func (r *rig) command(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, r.mend, append(args, "--data-dir", r.data())...)
	command.Env = append(os.Environ(), "MEND_KUBECONFIG="+r.kubeconfig(), "HOME="+r.dir)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("mend %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

func (r *rig) up(ctx context.Context) (time.Duration, error) {
	var err error
	if r.dir, err = os.MkdirTemp("", "mend-bench-"); err != nil {
		return 0, err
	}
	began := time.Now()
	_, err = r.command(ctx, "up", "--api-port", "0", "--kubeconfig", r.kubeconfig())
	return time.Since(began), err
}

func (r *rig) down() error {
	if r.dir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := r.command(ctx, "down", "--purge"); err != nil {
		return err
	}
	err := os.RemoveAll(r.dir)
	r.dir = ""
	return err
}

// starts times `mend up` on empty data, and leaves the last one up.
func (r *rig) starts(ctx context.Context) error {
	var times []time.Duration
	for i := range starts {
		took, err := r.up(ctx)
		if err != nil {
			return err
		}
		times = append(times, took)
		if i < starts-1 {
			if err := r.down(); err != nil {
				return err
			}
		}
	}
	report("mend up, empty data, to node Ready", times)
	return nil
}

// rest measures a mend with nothing deployed.
func (r *rig) rest(ctx context.Context) error {
	processes, err := r.processes(ctx)
	if err != nil {
		return err
	}
	if err := pass(ctx, settleTime); err != nil {
		return err
	}
	before, err := cpu(processes)
	if err != nil {
		return err
	}
	if err := pass(ctx, quietTime); err != nil {
		return err
	}
	after, err := cpu(processes)
	if err != nil {
		return err
	}
	used := after - before
	var memory []string
	for _, process := range processes {
		bytes, err := procstat.Resident(process.pid)
		if err != nil {
			return err
		}
		memory = append(memory, fmt.Sprintf("%s %d MiB", process.name, bytes>>20))
	}
	fmt.Printf("%-44s %s\n", "memory at rest", strings.Join(memory, " + "))
	fmt.Printf("%-44s %.2f %% of one core\n", "CPU at rest, over a minute", 100*used.Seconds()/quietTime.Seconds())
	return nil
}

func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// process is one that mend consists of.
type process struct {
	name string
	pid  int
}

// cpu is what processes have used so far, together.
func cpu(processes []process) (sum time.Duration, err error) {
	for _, process := range processes {
		used, err := procstat.CPU(process.pid)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

func (r *rig) processes(ctx context.Context) ([]process, error) {
	text, err := r.command(ctx, "status", "--json")
	if err != nil {
		return nil, err
	}
	var status struct {
		PID        int
		Components []struct{ Name, Message string }
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return nil, err
	}
	found := []process{{"mend", status.PID}}
	for _, component := range status.Components {
		var pid int
		if _, err := fmt.Sscanf(component.Message, "pid %d", &pid); err == nil {
			found = append(found, process{component.Name, pid})
		}
	}
	if status.PID == 0 || len(found) != 3 {
		return nil, fmt.Errorf("want mend, containerd and the cluster's DNS in the status: %s", text)
	}
	return found, nil
}

// heal interleaves heals with raw CRI calls on the same containerd, and leaves the
// Deployment with as many Pods as the kills want.
func (r *rig) heal(ctx context.Context) error {
	pods, err := watchPods(ctx, r.kubeconfig())
	if err != nil {
		return err
	}
	defer pods.stop()
	if err := pods.deploy(ctx, replicas); err != nil {
		return err
	}
	floor, err := openFloor(r.data())
	if err != nil {
		return err
	}
	defer floor.close()
	var healed, raw, restarted []time.Duration
	for range heals {
		took, err := pods.heal(ctx, pods.any())
		if err != nil {
			return err
		}
		healed = append(healed, took)
		if len(raw) < floors {
			if took, err = floor.time(ctx); err != nil {
				return err
			}
			raw = append(raw, took)
		}
	}
	for range crashes {
		took, err := pods.crash(ctx)
		if err != nil {
			return err
		}
		restarted = append(restarted, took)
	}
	report("three raw CRI calls: sandbox, create, start", raw)
	report("Pod deleted to replacement Ready, 10 replicas", healed)
	fmt.Printf("%-44s %.2f\n", "  as a multiple of the raw calls", median(healed).Seconds()/median(raw).Seconds())
	report("killed container running again", restarted)
	if err := pods.traffic(ctx); err != nil {
		return err
	}
	return pods.scale(ctx, beside)
}

// waysOnly starts what the ways need.
func (r *rig) waysOnly(ctx context.Context) error {
	if _, err := r.up(ctx); err != nil {
		return err
	}
	pods, err := watchPods(ctx, r.kubeconfig())
	if err != nil {
		return err
	}
	defer pods.stop()
	if err := pods.deploy(ctx, 3); err != nil {
		return err
	}
	return pods.traffic(ctx)
}

func median[T cmp.Ordered](values []T) T {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

func report(what string, times []time.Duration) {
	fmt.Printf("%-44s median %.0f ms (min %.0f, max %.0f, n=%d)\n", what, ms(median(times)), ms(slices.Min(times)), ms(slices.Max(times)), len(times))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
