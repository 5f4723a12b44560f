package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

const (
	// beside are the Pods that run while mend is killed.
	beside = 50
	kills  = 20
)

// killed kills mend beside 50 Pods and times, from the call of `mend up` on, how long
// until the API answers a consistent read and until the node is Ready.
func (r *rig) killed(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", r.kubeconfig())
	if err != nil {
		return err
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var answers, ready []time.Duration
	for range kills {
		running, err := r.processes(ctx)
		if err != nil {
			return err
		}
		own := running[0].pid
		if err := syscall.Kill(own, syscall.SIGKILL); err != nil {
			return err
		}
		if err := awaitEnd(ctx, own); err != nil {
			return err
		}
		began := time.Now()
		ended := make(chan error, 1)
		go func() {
			_, err := r.command(ctx, "up", "--api-port", server.Port(), "--kubeconfig", r.kubeconfig())
			ended <- err
		}()
		answered, err := awaitAnswer(ctx, client, began)
		if err := errors.Join(err, <-ended); err != nil {
			return err
		}
		answers, ready = append(answers, answered), append(ready, time.Since(began))
		if err := allReady(ctx, client); err != nil {
			return err
		}
		// What a start leaves for later is not to weigh on the next.
		if err := pass(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	report(fmt.Sprintf("API back after kill -9, %d Pods running", beside), answers)
	report("  to node Ready", ready)
	return nil
}

// awaitEnd returns when a process is gone.
func awaitEnd(ctx context.Context, pid int) error {
	for syscall.Kill(pid, 0) == nil {
		if err := pass(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// awaitAnswer returns after what time the API answered a consistent read.
func awaitAnswer(ctx context.Context, client kubernetes.Interface, began time.Time) (time.Duration, error) {
	for {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		_, err := client.CoreV1().Namespaces().Get(limited, "default", metav1.GetOptions{})
		cancel()
		if err == nil {
			return time.Since(began), nil
		}
		if pass(ctx, 5*time.Millisecond) != nil {
			return 0, err
		}
	}
}

// allReady says what is wrong unless each Pod is Ready and was never restarted.
func allReady(ctx context.Context, client kubernetes.Interface) error {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for i := range list.Items {
		if pod := &list.Items[i]; podutil.IsPodReady(pod) && !restarted(pod) {
			ready++
		}
	}
	if ready != beside {
		return fmt.Errorf("%d of %d Pods are Ready and were never restarted, want %d", ready, len(list.Items), beside)
	}
	return nil
}

func restarted(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.RestartCount > 0 {
			return true
		}
	}
	return false
}
