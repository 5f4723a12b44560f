package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clients work side by side, as many as controllers commonly do.
const clients = 16

// Requests is how many of one kind were answered a second.
type Requests struct {
	Name      string  `json:"name"`
	Count     int     `json:"count"`
	PerSecond float64 `json:"perSecond"`
}

// timeRequests creates, reads and lists ConfigMaps, and times how long a write
// takes to come back as an event.
func (b *bench) timeRequests(ctx context.Context) error {
	maps := b.client.CoreV1().ConfigMaps(b.namespace)
	name := func(i int) string { return fmt.Sprintf("bench-%d", i) }
	for _, kind := range []struct {
		name  string
		count int
		do    func(ctx context.Context, i int) error
	}{
		{"creates", b.Options.Requests, func(ctx context.Context, i int) error {
			_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name(i)}}, metav1.CreateOptions{})
			return err
		}},
		{"gets", b.Options.Requests, func(ctx context.Context, i int) error {
			_, err := maps.Get(ctx, name(i), metav1.GetOptions{})
			return err
		}},
		{"lists of 100", max(1, b.Options.Requests/10), func(ctx context.Context, _ int) error {
			_, err := maps.List(ctx, metav1.ListOptions{Limit: 100})
			return err
		}},
	} {
		began := time.Now()
		if err := spreadOver(ctx, kind.count, kind.do); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		b.result.Requests = append(b.result.Requests, Requests{Name: kind.name, Count: kind.count,
			PerSecond: float64(kind.count) / time.Since(began).Seconds()})
	}
	return b.timeWatch(ctx)
}

// spreadOver does count requests from several clients at once.
func spreadOver(ctx context.Context, count int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range clients {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < int64(count); i = next.Add(1) - 1 {
				if err := do(ctx, int(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

const watchSamples = 100

func (b *bench) timeWatch(ctx context.Context) error {
	maps := b.client.CoreV1().ConfigMaps(b.namespace)
	watching, err := maps.Watch(ctx, metav1.ListOptions{LabelSelector: "bench=watch"})
	if err != nil {
		return err
	}
	defer watching.Stop()
	var times []time.Duration
	for i := range watchSamples {
		began := time.Now()
		made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("watch-%d", i), Labels: map[string]string{"bench": "watch"}}}
		if _, err := maps.Create(ctx, made, metav1.CreateOptions{}); err != nil {
			return err
		}
		select {
		case _, ok := <-watching.ResultChan():
			if !ok {
				return fmt.Errorf("the watch ended")
			}
			times = append(times, time.Since(began))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	b.result.Watch = spread(times)
	return nil
}
