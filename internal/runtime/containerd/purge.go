package containerd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/runtime/cleanup"
)

// StopPods ends every Pod that containerd knows: all containers get SIGTERM at once,
// SIGKILL after grace, and then containers and sandboxes are removed. The agent does
// this by each Pod's own grace period; StopPods is for when it could not. ctx bounds
// it as a whole.
func (s *Supervisor) StopPods(ctx context.Context, grace time.Duration) error {
	conn, err := dial(s.Endpoint())
	if err != nil {
		return err
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	err = inParallel(containers.GetContainers(), func(c *runtimeapi.Container) error {
		seconds := int64((grace + time.Second - 1) / time.Second)
		_, err := client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.GetId(), Timeout: seconds})
		return notFoundIsFine(err)
	})
	if err != nil {
		return fmt.Errorf("stop containers: %w", err)
	}
	sandboxes, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	err = inParallel(sandboxes.GetItems(), func(p *runtimeapi.PodSandbox) error {
		_, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.GetId()})
		if notFoundIsFine(err) != nil {
			return err
		}
		_, err = client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		return notFoundIsFine(err)
	})
	if err != nil {
		return fmt.Errorf("remove sandboxes: %w", err)
	}
	return nil
}

// inParallel runs one call per item, all at once: Pods end together, not in turn.
func inParallel[T any](items []T, call func(T) error) error {
	errs := make([]error, len(items))
	var wg sync.WaitGroup
	for i, item := range items {
		wg.Go(func() { errs[i] = call(item) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func notFoundIsFine(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// Purge ends what is left of an instance's containers and deletes all that containerd
// kept, in whatever state it is: containerd itself, shims, containers, mounts, network
// namespaces, cgroups, sockets, images. It does not ask containers in grace; StopPods
// does. It refuses while another mend watches the instance. The whole run directory
// goes; of the data directory bin, containerd, cni and containerd's log. Interfaces and
// rules are network.Teardown's.
//
// containerd goes first, since it could start something again; then the containers,
// while their shims are there to reap them; then the shims.
func Purge(ctx context.Context, cfg Config) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	if held, err := cfg.lockIfThere(); err != nil {
		return err
	} else if held != nil {
		defer held.Close()
	}
	if err := endRecorded(ctx, cfg); err != nil {
		return err
	}
	if cfg.CgroupParent != "" {
		if err := cleanup.KillCgroup(ctx, cfg.CgroupParent); err != nil {
			return err
		}
	}
	if err := cleanup.KillPrograms(ctx, cfg.binParent()); err != nil {
		return err
	}
	if cfg.CgroupParent != "" {
		if err := cleanup.RemoveCgroup(cfg.CgroupParent); err != nil {
			return err
		}
	}
	for _, dir := range []string{cfg.RunDir, cfg.root()} {
		if err := cleanup.Unmount(dir); err != nil {
			return err
		}
	}
	var failed error
	for _, dir := range []string{cfg.RunDir, cfg.root(), cfg.workDir(), cfg.binParent()} {
		failed = errors.Join(failed, cleanup.RemoveTree(dir))
	}
	failed = errors.Join(failed, remove(cfg.LogFile()), remove(cfg.LogFile()+".1"))
	return errors.Join(failed, cleanup.RemoveEmpty(filepath.Dir(cfg.RunDir), "mend"))
}

// endRecorded ends the containerd that an earlier mend left, in order, so that its
// database is whole if deleting it fails.
func endRecorded(ctx context.Context, cfg Config) error {
	p, err := cfg.readRecord().find()
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	return p.end(ctx, stopGrace)
}
