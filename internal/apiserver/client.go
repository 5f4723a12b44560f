package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Client is a client of the server in process, for the user and with the properties that
// [Server.ClientConfig] tells of. Its writes of Pods, which are most of all that mend's own
// loops and agents write, are done to the storage as the handlers do them, but past HTTP,
// encoding, and a goroutine for each. What asks for more than a plain write, a dry run or a
// field manager by another name, goes the way of all other requests.
func (s *Server) Client(userName string, groups ...string) (kubernetes.Interface, error) {
	config := s.ClientConfig(userName, groups...)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &directClient{client, s.newPodWriter(config)}, nil
}

type directClient struct {
	kubernetes.Interface
	writer *podWriter
}

// CoreV1 implements kubernetes.Interface.
func (c *directClient) CoreV1() typedcorev1.CoreV1Interface {
	return &directCore{c.Interface.CoreV1(), c.writer}
}

type directCore struct {
	typedcorev1.CoreV1Interface
	writer *podWriter
}

// Pods implements typedcorev1.CoreV1Interface.
func (c *directCore) Pods(namespace string) typedcorev1.PodInterface {
	return &directPods{c.CoreV1Interface.Pods(namespace), c.writer, namespace}
}

// directPods are the Pods of one namespace.
type directPods struct {
	typedcorev1.PodInterface
	writer    *podWriter
	namespace string
}

// Create implements typedcorev1.PodInterface.
func (p *directPods) Create(ctx context.Context, pod *corev1.Pod, options metav1.CreateOptions) (*corev1.Pod, error) {
	// Of several owners the handlers drop those that are named twice.
	if p.namespace == "" || !isPlainCreate(options) || len(pod.OwnerReferences) > 1 {
		return p.PodInterface.Create(ctx, pod, options)
	}
	return p.writer.create(ctx, p.namespace, pod)
}

// UpdateStatus implements typedcorev1.PodInterface.
func (p *directPods) UpdateStatus(ctx context.Context, pod *corev1.Pod, options metav1.UpdateOptions) (*corev1.Pod, error) {
	if p.namespace == "" || pod.Name == "" || !isPlainCreate(metav1.CreateOptions(options)) || len(pod.OwnerReferences) > 1 {
		return p.PodInterface.UpdateStatus(ctx, pod, options)
	}
	return p.writer.updateStatus(ctx, p.namespace, pod)
}

// Delete implements typedcorev1.PodInterface.
func (p *directPods) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	plain := options.DryRun == nil && options.OrphanDependents == nil && options.PropagationPolicy == nil &&
		options.IgnoreStoreReadErrorWithClusterBreakingPotential == nil
	if p.namespace == "" || name == "" || !plain {
		return p.PodInterface.Delete(ctx, name, options)
	}
	return p.writer.remove(ctx, p.namespace, name, options)
}

// Bind implements typedcorev1.PodInterface.
func (p *directPods) Bind(ctx context.Context, binding *corev1.Binding, options metav1.CreateOptions) error {
	if p.namespace == "" || binding.Name == "" || !isPlainCreate(options) {
		return p.PodInterface.Bind(ctx, binding, options)
	}
	return p.writer.bind(ctx, p.namespace, binding)
}

func isPlainCreate(options metav1.CreateOptions) bool {
	return options.DryRun == nil && options.FieldManager == "" && options.FieldValidation == ""
}
