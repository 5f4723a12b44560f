package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"
)

// askers is how many of a client's requests are under way at once.
const askers = 4

// client asks from a Pod's network namespace.
type client struct{ pid int }

// clientIn is a client beside a Pod's process.
func clientIn(ctx context.Context, pod *v1.Pod) (client, error) {
	pid, err := awaitProcess(ctx, string(pod.UID))
	return client{pid}, err
}

// way is what one way's requests took in one round.
type way struct {
	Requests int
	P50, P99 time.Duration
}

// ask asks a URL for [trafficTime]. A process of its own does it, so that the namespace
// costs nothing while it is timed.
func (c client) ask(ctx context.Context, url string, kept bool) (way, error) {
	self, err := os.Executable()
	if err != nil {
		return way{}, err
	}
	command := exec.CommandContext(ctx, self, "--ask", url, fmt.Sprintf("--kept=%t", kept))
	command.Stderr = os.Stderr
	out, err := c.output(command)
	if err != nil {
		return way{}, fmt.Errorf("ask %s from a Pod: %w", url, err)
	}
	var measured way
	return measured, json.Unmarshal(out, &measured)
}

// output starts the command in the namespace: a process begins in that of the thread
// that makes it.
func (c client) output(command *exec.Cmd) (out []byte, err error) {
	ns, err := netns.GetFromPid(c.pid)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = netns.Set(ns); err == nil {
			out, err = command.Output()
		}
	}()
	<-done
	return out, err
}

// askAndTell is the client's process: it writes a [way] as JSON.
func askAndTell(ctx context.Context, url string, kept bool) error {
	times, err := askFor(ctx, url, kept)
	if err != nil {
		return err
	}
	slices.Sort(times)
	at := func(share float64) time.Duration { return times[int(share*float64(len(times)-1))] }
	return json.NewEncoder(os.Stdout).Encode(way{Requests: len(times), P50: at(0.5), P99: at(0.99)})
}

// askFor asks for a while, several times at once, and returns what each request took.
func askFor(ctx context.Context, url string, kept bool) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, trafficTime)
	defer cancel()
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	var at sync.WaitGroup
	for range askers {
		at.Go(func() {
			transport := &http.Transport{DisableKeepAlives: !kept}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			var own []time.Duration
			for ctx.Err() == nil {
				took, err := ask(ctx, client, url)
				if err == nil {
					own = append(own, took)
				} else if ctx.Err() == nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
		})
	}
	at.Wait()
	if failed == nil && len(all) == 0 {
		failed = fmt.Errorf("%s: no answer", url)
	}
	return all, failed
}

func ask(ctx context.Context, client *http.Client, url string) (time.Duration, error) {
	began := time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0, err
	}
	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", url, answer.Status)
	}
	return time.Since(began), nil
}
