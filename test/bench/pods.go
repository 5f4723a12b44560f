package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

const namespace = "default"

// pods follows the Pods of one Deployment through a watch.
type pods struct {
	client kubernetes.Interface
	watch  watch.Interface
	seen   map[string]*corev1.Pod
	want   int
}

func watchPods(ctx context.Context, kubeconfig string) (*pods, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	watching, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return &pods{client: client, watch: watching, seen: map[string]*corev1.Pod{}}, nil
}

func (p *pods) stop() { p.watch.Stop() }

// until follows the watch until reached holds.
func (p *pods) until(ctx context.Context, reached func() bool) error {
	for !reached() {
		select {
		case event, ok := <-p.watch.ResultChan():
			pod, isPod := event.Object.(*corev1.Pod)
			switch {
			case !ok || !isPod:
				return errors.New("the watch ended")
			case event.Type == watch.Deleted:
				delete(p.seen, pod.Name)
			default:
				p.seen[pod.Name] = pod
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (p *pods) allReady() bool {
	ready := 0
	for _, pod := range p.seen {
		if pod.DeletionTimestamp == nil && podutil.IsPodReady(pod) {
			ready++
		}
	}
	return ready == p.want
}

func (p *pods) deploy(ctx context.Context, n int32) error {
	p.want = int(n)
	labels := map[string]string{"app": "bench"}
	_, err := p.client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "mend.local/web:1.0"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return p.until(ctx, p.allReady)
}

// scale changes the number of replicas and waits until all are Ready.
func (p *pods) scale(ctx context.Context, n int) error {
	p.want = n
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
	if _, err := p.client.AppsV1().Deployments(namespace).Patch(ctx, "bench", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	return p.until(ctx, p.allReady)
}

// any is the first Pod by name that is not one of others.
func (p *pods) any(others ...string) *corev1.Pod {
	var first *corev1.Pod
	for _, pod := range p.seen {
		if pod.DeletionTimestamp == nil && !slices.Contains(others, pod.Name) && (first == nil || pod.Name < first.Name) {
			first = pod
		}
	}
	return first
}

// heal deletes a Pod and times how long until ten are Ready again. It then waits
// until the deleted one is gone, so that heals do not overlap.
func (p *pods) heal(ctx context.Context, victim *corev1.Pod) (time.Duration, error) {
	began := time.Now()
	if err := p.client.CoreV1().Pods(namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	going := func() bool {
		pod := p.seen[victim.Name]
		return pod == nil || pod.DeletionTimestamp != nil
	}
	if err := p.until(ctx, func() bool { return going() && p.allReady() }); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, p.until(ctx, func() bool { return p.seen[victim.Name] == nil })
}

// crash kills the process of a container that has not crashed before, and times
// how long until it is shown as running again.
func (p *pods) crash(ctx context.Context) (time.Duration, error) {
	victim := p.any()
	pid, err := awaitProcess(ctx, string(victim.UID))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return 0, err
	}
	err = p.until(ctx, func() bool {
		pod := p.seen[victim.Name]
		return pod != nil && len(pod.Status.ContainerStatuses) == 1 &&
			pod.Status.ContainerStatuses[0].RestartCount > 0 && pod.Status.ContainerStatuses[0].State.Running != nil
	})
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	// The next crash must be the first of its Pod too.
	_, err = p.heal(ctx, victim)
	return took, err
}

// awaitProcess finds the sample server of a Pod that is just shown as running:
// for a moment its process is still runc's.
func awaitProcess(ctx context.Context, uid string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		pid, err := containerProcess(uid)
		if err == nil {
			return pid, nil
		}
		if pass(ctx, 5*time.Millisecond) != nil {
			return 0, err
		}
	}
}

// containerProcess finds the sample server of a Pod by its cgroup.
func containerProcess(uid string) (int, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), uid) {
			continue
		}
		dir := filepath.Dir(path)
		if line, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil && bytes.HasPrefix(line, []byte("/bin/web")) {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, fmt.Errorf("no process of Pod %s", uid)
}
