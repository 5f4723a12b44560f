package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	trafficRounds  = 5
	trafficTime    = 3 * time.Second // of each way in each round
	trafficClients = 4
)

// traffic compares requests through a ClusterIP with requests straight to a Pod, in
// turns, with connections that are kept and with new ones. The two ways lead to two
// Pods that are alike: a Pod that had closed a connection of one way would for a minute
// take a new one of the other from the same port for an old one's segment.
func (p *pods) traffic(ctx context.Context) error {
	served := p.any()
	other := p.any(served.Name)
	_, err := p.client.CoreV1().Pods(namespace).Patch(ctx, served.Name, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"bench":"traffic"}}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	service, err := p.client.CoreV1().Services(namespace).Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "bench-traffic"},
		Spec:       v1.ServiceSpec{Selector: map[string]string{"bench": "traffic"}, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	through := "http://" + net.JoinHostPort(service.Spec.ClusterIP, "80")
	straight := "http://" + net.JoinHostPort(other.Status.PodIP, "8080")
	if err := untilAnswered(ctx, through); err != nil {
		return err
	}
	for _, kept := range []bool{true, false} {
		if err := compareWays(ctx, straight, through, kept); err != nil {
			return err
		}
	}
	return nil
}

// untilAnswered waits for the first answer.
func untilAnswered(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		_, err := ask(ctx, http.DefaultClient, url)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not answer: %w", url, err)
		}
		if err := pass(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// way is what one way's requests took in one round, sorted.
type way []time.Duration

func (w way) at(share float64) float64 { return float64(w[int(share*float64(len(w)-1))]) }

func compareWays(ctx context.Context, straight, through string, kept bool) error {
	var rate, middle, tail []float64
	for range trafficRounds {
		direct, err := measureWay(ctx, straight, kept)
		if err != nil {
			return err
		}
		service, err := measureWay(ctx, through, kept)
		if err != nil {
			return err
		}
		rate = append(rate, float64(len(service))/float64(len(direct)))
		middle = append(middle, service.at(0.5)/direct.at(0.5))
		tail = append(tail, service.at(0.99)/direct.at(0.99))
	}
	what := "kept connections"
	if !kept {
		what = "new connections"
	}
	fmt.Printf("%-44s throughput %.0f %%, p50 %.0f %%, p99 %.0f %% (medians of %d)\n", "ClusterIP against the Pod, "+what,
		100*median(rate), 100*median(middle), 100*median(tail), trafficRounds)
	return nil
}

// measureWay asks for a while with several clients at once.
func measureWay(ctx context.Context, url string, kept bool) (way, error) {
	ctx, cancel := context.WithTimeout(ctx, trafficTime)
	defer cancel()
	var mu sync.Mutex
	var all way
	var failed error
	var clients sync.WaitGroup
	for range trafficClients {
		clients.Go(func() {
			transport := &http.Transport{DisableKeepAlives: !kept}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			var own way
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
	clients.Wait()
	if failed == nil && len(all) == 0 {
		failed = fmt.Errorf("%s: no answer", url)
	}
	slices.Sort(all)
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
