package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	trafficRounds = 5
	trafficTime   = 3 * time.Second // of each way in each run
)

// traffic compares requests through a ClusterIP with requests straight to a Pod, in
// turns, with connections that are kept and with new ones. They come from a third Pod's
// network namespace. The two ways lead to two Pods that are alike: a Pod that had closed
// a connection of one way would for a minute take a new one of the other from the same
// port for an old one's segment.
func (p *pods) traffic(ctx context.Context) error {
	served := p.any()
	other := p.any(served.Name)
	client, err := clientIn(ctx, p.any(served.Name, other.Name))
	if err != nil {
		return err
	}
	_, err = p.client.CoreV1().Pods(namespace).Patch(ctx, served.Name, types.MergePatchType,
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
		if err := compareWays(ctx, client, straight, through, kept); err != nil {
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

func compareWays(ctx context.Context, client client, straight, through string, kept bool) error {
	var rate, middle, tail []float64
	for range trafficRounds {
		ways, err := client.ask(ctx, [2]string{straight, through}, kept)
		if err != nil {
			return err
		}
		direct, service := ways[0], ways[1]
		rate = append(rate, float64(service.Requests)/float64(direct.Requests))
		middle = append(middle, float64(service.P50)/float64(direct.P50))
		tail = append(tail, float64(service.P99)/float64(direct.P99))
	}
	what := "kept connections"
	if !kept {
		what = "new connections"
	}
	fmt.Printf("%-44s throughput %.0f %%, p50 %.0f %%, p99 %.0f %% (medians of %d)\n", "ClusterIP against the Pod, "+what,
		100*median(rate), 100*median(middle), 100*median(tail), trafficRounds)
	return nil
}
