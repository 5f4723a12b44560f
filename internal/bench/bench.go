package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options say what to time. Replicas is the total over all Deployments.
type Options struct {
	Config      *rest.Config
	Replicas    int
	Deployments int
	Heals       int
	Requests    int // of each kind; 0 leaves them out
	Image       string
	Probe       bool  // the Pods have a readiness probe
	Processes   []int // whose memory and CPU to account
	Progress    io.Writer
	StepLimit   time.Duration
}

// Validate names the first option that makes no sense.
func (o Options) Validate() error {
	switch {
	case o.Replicas < 1:
		return fmt.Errorf("--replicas %d: must be at least 1", o.Replicas)
	case o.Deployments < 1 || o.Deployments > o.Replicas:
		return fmt.Errorf("--deployments %d: must be between 1 and the replicas", o.Deployments)
	case o.Heals < 0:
		return fmt.Errorf("--heals %d: must not be negative", o.Heals)
	case o.Requests < 0:
		return fmt.Errorf("--requests %d: must not be negative", o.Requests)
	}
	return nil
}

// Result is what was measured. Times are in seconds.
type Result struct {
	Server      string           `json:"server"`
	Replicas    int              `json:"replicas"`
	Deployments int              `json:"deployments"`
	Probe       bool             `json:"probe"`
	Steps       []Step           `json:"steps"`
	Heal        *Spread          `json:"heal,omitempty"`
	Requests    []Requests       `json:"requests,omitempty"`
	Watch       *Spread          `json:"watch,omitempty"`
	Processes   []ProcessAccount `json:"processes,omitempty"`
}

// Step is one change of all Deployments, until their status says it is complete
// and no Pod is left over.
type Step struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	PerPod  float64 `json:"podsPerSecond"`
}

// Run measures. On an error it returns what it has so far beside the error.
func Run(ctx context.Context, options Options) (result Result, err error) {
	if err := options.Validate(); err != nil {
		return result, err
	}
	config := rest.CopyConfig(options.Config)
	config.QPS = -1 // the cluster is timed, not the client's throttle
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return result, err
	}
	result = Result{Server: config.Host, Replicas: options.Replicas, Deployments: options.Deployments, Probe: options.Probe}
	namespace, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}, metav1.CreateOptions{})
	if err != nil {
		return result, err
	}
	b := &bench{Options: options, client: client, namespace: namespace.Name, result: &result}
	defer func() { err = errors.Join(err, b.cleanUp(ctx)) }()
	accounts := startAccounts(options.Processes)
	if err := b.measure(ctx); err != nil {
		return result, err
	}
	result.Processes = accounts.end()
	return result, nil
}

type bench struct {
	Options
	client    kubernetes.Interface
	namespace string
	world     *world
	result    *Result
}

func (b *bench) measure(ctx context.Context) error {
	if b.Options.Requests > 0 {
		if err := b.timeRequests(ctx); err != nil {
			return err
		}
	}
	world, err := watchWorld(ctx, b.client, b.namespace)
	if err != nil {
		return err
	}
	b.world = world
	defer world.stop()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"scale out", b.scaleOut}, {"heal", b.heal}, {"roll", b.roll("2")}, {"undo", b.roll("1")}, {"scale in", b.scaleIn},
	} {
		b.say("%s …", step.name)
		limited, cancel := context.WithTimeout(ctx, b.StepLimit)
		began := time.Now()
		err := step.do(limited)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if took := time.Since(began).Seconds(); step.name != "heal" {
			b.result.Steps = append(b.result.Steps, Step{Name: step.name, Seconds: took, PerPod: float64(b.Replicas) / took})
			b.say("%s: %.2f s", step.name, took)
		}
	}
	return nil
}

func (b *bench) say(format string, args ...any) {
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, format+"\n", args...)
	}
}

// cleanUp deletes the namespace and waits until it is gone, so that two runs in
// a row do not disturb each other.
func (b *bench) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	namespaces := b.client.CoreV1().Namespaces()
	watching, err := namespaces.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + b.namespace})
	if err != nil {
		return err
	}
	defer watching.Stop()
	background := metav1.DeletePropagationBackground
	if err := namespaces.Delete(ctx, b.namespace, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		return err
	}
	for event := range watching.ResultChan() {
		if event.Type == "DELETED" {
			return nil
		}
	}
	return fmt.Errorf("namespace %s is still there", b.namespace)
}
