package app

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/agent/podspec"
)

// endPods ends every Pod at once, each container in its Pod's grace period, and
// removes them; the API keeps the Pods, so that the next start runs them again.
// The agent must have ended, or it would start them anew.
func (h *host) endPods(ctx context.Context) error {
	sandboxes, err := h.runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	containers, err := h.runtime.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	of := map[string][]*runtimeapi.Container{}
	for _, container := range containers {
		of[container.PodSandboxId] = append(of[container.PodSandboxId], container)
	}
	errs := make([]error, len(sandboxes))
	var pods sync.WaitGroup
	for i, sandbox := range sandboxes {
		pods.Go(func() {
			if err := h.endPod(ctx, sandbox.Id, of[sandbox.Id]); err != nil {
				errs[i] = fmt.Errorf("%s/%s: %w", sandbox.GetMetadata().GetNamespace(), sandbox.GetMetadata().GetName(), err)
			}
		})
	}
	pods.Wait()
	return errors.Join(errs...)
}

func (h *host) endPod(ctx context.Context, sandbox string, containers []*runtimeapi.Container) error {
	errs := make([]error, len(containers))
	var ending sync.WaitGroup
	for i, container := range containers {
		if container.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			ending.Go(func() { errs[i] = h.runtime.StopContainer(ctx, container.Id, gracePeriod(container.Annotations)) })
		}
	}
	ending.Wait()
	return errors.Join(errors.Join(errs...), h.runtime.StopPodSandbox(ctx, sandbox), h.runtime.RemovePodSandbox(ctx, sandbox))
}

// defaultGrace is Kubernetes' own, in seconds.
const defaultGrace = 30

func gracePeriod(annotations map[string]string) int64 {
	for _, name := range []string{podspec.DeletionGracePeriodAnnotation, podspec.TerminationGracePeriodAnnotation} {
		if seconds, err := strconv.ParseInt(annotations[name], 10, 64); err == nil && seconds >= 0 {
			return seconds
		}
	}
	return defaultGrace
}
