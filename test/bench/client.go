package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"

	"mend/internal/network/netlab"
)

const (
	// askerCount is how many of a client's requests are under way at once.
	askerCount = 4
	// turnTime is how long one way is asked before it is the other's turn.
	turnTime = 100 * time.Millisecond
)

// client asks from a Pod's network namespace.
type client struct{ pid int }

// clientIn is a client beside a Pod's process.
func clientIn(ctx context.Context, pod *v1.Pod) (client, error) {
	pid, err := awaitProcess(ctx, string(pod.UID))
	return client{pid}, err
}

// way is what one way's requests took in one run.
type way struct {
	Requests int
	P50, P99 time.Duration
}

// ask asks two URLs in turns, each for [trafficTime]. A process of its own does it, so that
// the namespace costs nothing while it is timed.
func (c client) ask(ctx context.Context, urls [2]string, kept bool) (ways [2]way, err error) {
	self, err := os.Executable()
	if err != nil {
		return ways, err
	}
	command := exec.CommandContext(ctx, self, "--ask", urls[0]+","+urls[1], fmt.Sprintf("--kept=%t", kept))
	command.Stderr = os.Stderr
	out, err := c.output(command)
	if err != nil {
		return ways, fmt.Errorf("ask from a Pod: %w", err)
	}
	return ways, json.Unmarshal(out, &ways)
}

// output starts the command in the namespace: a process begins in that of the thread
// that makes it.
func (c client) output(command *exec.Cmd) (out []byte, err error) {
	ns, err := netns.GetFromPid(c.pid)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	err = netlab.Do(ns, func() (err error) { out, err = command.Output(); return err })
	return out, err
}

// askAndTell is the client's process: it writes the two ways as JSON. They take turns of
// [turnTime], so that both see the same machine.
func askAndTell(ctx context.Context, urls []string, kept bool) error {
	if len(urls) != 2 {
		return fmt.Errorf("--ask: want two URLs, not %d", len(urls))
	}
	askers := make([]*asker, 0, askerCount)
	for range askerCount {
		askers = append(askers, &asker{transport: &http.Transport{DisableKeepAlives: !kept}})
	}
	for began := time.Now(); time.Since(began) < 2*trafficTime; {
		for i, url := range urls {
			if err := turn(ctx, askers, i, url); err != nil {
				return err
			}
		}
	}
	var ways [2]way
	for i := range ways {
		var times []time.Duration
		for _, a := range askers {
			times = append(times, a.took[i]...)
		}
		slices.Sort(times)
		at := func(share float64) time.Duration { return times[int(share*float64(len(times)-1))] }
		ways[i] = way{Requests: len(times), P50: at(0.5), P99: at(0.99)}
	}
	return json.NewEncoder(os.Stdout).Encode(ways)
}

// asker asks one request after another, and notes what each took, by the way's index.
type asker struct {
	transport *http.Transport
	took      [2][]time.Duration
	failed    error
}

// turn has all askers ask one URL for a moment.
func turn(ctx context.Context, askers []*asker, i int, url string) error {
	ends := time.Now().Add(turnTime)
	var at sync.WaitGroup
	for _, a := range askers {
		at.Go(func() {
			client := &http.Client{Transport: a.transport}
			for asked := false; !asked || time.Now().Before(ends); asked = true {
				took, err := ask(ctx, client, url)
				if err != nil {
					a.failed = err
					return
				}
				a.took[i] = append(a.took[i], took)
			}
		})
	}
	at.Wait()
	for _, a := range askers {
		if a.failed != nil {
			return a.failed
		}
	}
	return nil
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
