package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mend/internal/instance"
	"mend/internal/kubeconfig"
	"mend/internal/runtime/cleanup"
)

const (
	// podsLimit bounds the end of the Pods, whatever grace they ask for.
	podsLimit = 15 * time.Minute
	// endLimit bounds the end of everything once the Pods' grace is over.
	endLimit = time.Minute
)

// Down implements [Control].
func (p *process) Down(ctx context.Context, keepPods bool, tell Teller) error {
	if !p.downing.TryLock() {
		return errors.New("mend is going down already")
	}
	p.log.Info("going down", "keepPods", keepPods)
	if !keepPods {
		tell.Doing("ending the Pods in their grace periods")
		if err := p.endPods(ctx); err != nil {
			// Purge and the next start deal with what is left; to stay up half
			// ended helps nobody.
			p.log.Error("ending the Pods", "err", err)
			tell.Note("some Pods did not end: %v", err)
		}
	}
	tell.Doing("stopping the node's agent")
	p.nodes.end()
	var ended error
	if p.host != nil && !keepPods {
		tell.Doing("ending containerd")
		limited, cancel := context.WithTimeout(ctx, endLimit)
		defer cancel()
		if ended = p.host.end(limited); ended != nil {
			p.log.Error("ending containerd", "err", ended)
		}
	}
	tell.Doing("closing the state")
	// Also after an error: without its agents this process heals nothing any more,
	// and the next mend down ends what is left.
	close(p.downed)
	return ended
}

// endPods ends the Pods of all nodes at once, each in its own grace period; the
// API keeps them, so that the next start runs them again.
func (p *process) endPods(ctx context.Context) error {
	if p.host != nil {
		if err := p.host.hurry(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, podsLimit)
	defer cancel()
	p.agentsMu.Lock()
	agents := slices.Clone(p.agents)
	p.agentsMu.Unlock()
	agents = append(agents, p.fleet.close()...)
	errs := make([]error, len(agents))
	var ending sync.WaitGroup
	for i, one := range agents {
		ending.Go(func() { errs[i] = one.StopPods(ctx) })
	}
	ending.Wait()
	return errors.Join(errs...)
}

// Purge removes everything that the instance made. Nothing of it may run. The
// stamp goes last, so that a purge that was cut off can be repeated.
func Purge(ctx context.Context, i instance.Instance, tell Teller) error {
	lock, err := i.Acquire()
	if err != nil {
		return err
	}
	defer lock.Release()
	logLibraries(os.Stderr)
	limited, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	if err := purgeContainers(limited, i); err != nil {
		return err
	}
	if err := removeKubeconfig(i); err != nil {
		tell.Note("the kubeconfig stays: %v", err)
	}
	return removeData(i)
}

// removeKubeconfig takes back the caller's copy while it still leads here.
func removeKubeconfig(i instance.Instance) error {
	target, err := os.ReadFile(i.Path(kubeconfigNote))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	config, err := os.ReadFile(i.Kubeconfig())
	if err != nil {
		return err
	}
	path := strings.TrimSpace(string(target))
	owner, err := kubeconfig.OwnerOf(path)
	if err != nil {
		return err
	}
	return kubeconfig.As(owner, kubeconfig.Remove, path, config)
}

// removeData empties the data directory without leaving its file system or
// following a link, the stamp last, and then the directory itself. A directory
// that is a mount point stays, empty.
func removeData(i instance.Instance) error {
	if err := cleanup.Unmount(i.Dir); err != nil {
		return err
	}
	if run := i.RunDir(); run != i.Path("run") {
		if err := cleanup.RemoveTree(run); err != nil {
			return err
		}
		_ = os.Remove(filepath.Dir(run)) // only when no other instance runs
	}
	entries, err := os.ReadDir(i.Dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if instance.IsStamp(entry.Name()) {
			continue
		}
		remove := cleanup.RemoveTree
		if !entry.IsDir() {
			remove = os.Remove // a link itself, never what it leads to
		}
		if err := remove(i.Path(entry.Name())); err != nil {
			return err
		}
	}
	if err := i.Unstamp(); err != nil {
		return err
	}
	err = os.Remove(i.Dir)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s is empty but stays: %w", i.Dir, err)
	}
	return nil
}
