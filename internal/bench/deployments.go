package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// revisionAnnotation in the template is what a roll changes: nothing has to be
// pulled for it.
const revisionAnnotation = "bench/revision"

// shares splits the replicas over the Deployments as evenly as whole Pods allow.
func (b *bench) shares() []int {
	shares := make([]int, b.Deployments)
	for i := range shares {
		shares[i] = b.Replicas / b.Deployments
		if i < b.Replicas%b.Deployments {
			shares[i]++
		}
	}
	return shares
}

func (b *bench) scaleOut(ctx context.Context) error {
	for i, share := range b.shares() {
		made := b.deployment(fmt.Sprintf("bench-%d", i), int32(share))
		if _, err := b.client.AppsV1().Deployments(b.namespace).Create(ctx, made, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return b.world.settled(ctx, b.Deployments, b.Replicas)
}

func (b *bench) deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"bench": name}
	quarter := intstr.FromString("25%")
	container := corev1.Container{Name: "bench", Image: b.Image}
	if b.Probe {
		container.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}}
	}
	none := int64(0)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &quarter, MaxUnavailable: &quarter}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{revisionAnnotation: "1"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{container}, TerminationGracePeriodSeconds: &none},
			},
		},
	}
}

// roll returns the step that sets the template's annotation to revision.
func (b *bench) roll(revision string) func(context.Context) error {
	return func(ctx context.Context) error {
		patch := map[string]any{"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{revisionAnnotation: revision}}}}}
		return b.patchAll(ctx, patch, b.Replicas)
	}
}

func (b *bench) scaleIn(ctx context.Context) error {
	return b.patchAll(ctx, map[string]any{"spec": map[string]any{"replicas": 0}}, 0)
}

func (b *bench) patchAll(ctx context.Context, patch map[string]any, pods int) error {
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	for i := range b.Deployments {
		patched, err := b.client.AppsV1().Deployments(b.namespace).Patch(ctx, fmt.Sprintf("bench-%d", i),
			types.StrategicMergePatchType, text, metav1.PatchOptions{})
		if err != nil {
			return err
		}
		b.world.expect(patched)
	}
	return b.world.settled(ctx, b.Deployments, pods)
}

// heal deletes one Pod after the other and times how long until another is Ready
// in its place.
func (b *bench) heal(ctx context.Context) error {
	var times []time.Duration
	for range b.Heals {
		victim, err := b.world.anyReady(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		uid := victim.UID
		err = b.client.CoreV1().Pods(b.namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil {
			return err
		}
		ready, err := b.world.replaced(ctx, victim, b.Replicas)
		if err != nil {
			return err
		}
		times = append(times, ready.Sub(began))
	}
	if len(times) > 0 {
		b.result.Heal = spread(times)
		b.say("heal: median %.0f ms", b.result.Heal.Median*1000)
	}
	return nil
}
