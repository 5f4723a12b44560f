package app

import (
	"context"
	"errors"
	"os"
	"time"

	"mend/internal/instance"
	"mend/internal/network"
	"mend/internal/runtime/containerd"
)

// leftoverGrace is what containers get that a mend left which is not there to ask
// any more.
const leftoverGrace = 10 * time.Second

// EndLeftovers ends the containers and the containerd of a mend that is not
// running any more.
func EndLeftovers(ctx context.Context, i instance.Instance, tell Teller) error {
	if os.Geteuid() != 0 {
		return nil // a mend without root left no containers
	}
	lock, err := i.Acquire()
	if err != nil {
		return err
	}
	defer lock.Release()
	logLibraries(os.Stderr)
	p := &process{instance: i, log: newLog(os.Stderr, false)}
	if _, err := os.Stat(i.RunDir()); err != nil {
		return nil // nothing of it has run since the machine booted
	}
	tell.Note("ending what an earlier mend left running")
	limited, cancel := context.WithTimeout(ctx, leftoverGrace+endLimit)
	defer cancel()
	// containerd cannot take a sandbox down without the network it was made in.
	pods, err := network.Setup(limited, networkConfig(i, p))
	if err != nil {
		return err
	}
	left, err := containerd.Start(limited, containerdConfig(i, pods, p))
	if err != nil {
		return err
	}
	return errors.Join(left.StopPods(limited, leftoverGrace), left.Stop(limited), endServices(i), network.Teardown(ctx, networkConfig(i, p)))
}

// purgeContainers removes what running containers made outside the data directory.
// A mend without root ran none.
func purgeContainers(ctx context.Context, i instance.Instance) error {
	if os.Geteuid() != 0 {
		return nil
	}
	p := &process{instance: i, log: newLog(os.Stderr, false)}
	if err := containerd.Purge(ctx, containerdConfig(i, nil, p)); err != nil {
		return err
	}
	return errors.Join(endServices(i), network.Teardown(ctx, networkConfig(i, p)))
}
