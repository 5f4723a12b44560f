package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// counter asks a Service again and again and shows how many requests failed, while
// the walk goes on.
type counter struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	mu             sync.Mutex
	asked, failed  int
	first          error // of those that failed
	answeredByEach map[string]int
}

const (
	// countEvery is how often the counter is shown.
	countEvery = time.Second
	// askEvery paces each client; one that runs out of ports meets its own old connections.
	askEvery = 5 * time.Millisecond
	// askLimit bounds one request.
	askLimit = 10 * time.Second
)

// startCounter asks with one client that keeps its connection and one that makes a new
// one for each request.
func startCounter(url string) *counter {
	ctx, stop := context.WithCancel(context.Background())
	c := &counter{stop: stop, answeredByEach: map[string]int{}}
	for _, fresh := range []bool{false, true} {
		transport := &http.Transport{DisableKeepAlives: fresh}
		c.running.Go(func() {
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: askLimit}
			for tick := time.NewTicker(askEvery); ctx.Err() == nil; <-tick.C {
				c.ask(client, url)
			}
		})
	}
	c.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(countEvery):
				fmt.Printf("   … %s\n", c)
			}
		}
	})
	return c
}

func (c *counter) ask(client *http.Client, url string) {
	text, err := fetch(client, url)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if err == nil {
		c.answeredByEach[text]++
		return
	}
	if c.failed++; c.first == nil {
		c.first = err
	}
}

func fetch(client *http.Client, url string) (string, error) {
	answer, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return string(text), err
}

func (c *counter) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%d requests, %d failed", c.asked, c.failed)
}

// end stops the clients. It is an error if a request failed, or none was made.
func (c *counter) end() error {
	c.stop()
	c.running.Wait()
	switch {
	case c.failed > 0:
		return fmt.Errorf("%s, the first: %w", c, c.first)
	case c.asked == 0:
		return fmt.Errorf("no request was made")
	}
	fmt.Printf("   ✓ %s, answered by %d Pods in turn\n", c, len(c.answeredByEach))
	return nil
}
