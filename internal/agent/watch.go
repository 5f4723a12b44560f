package agent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Waits between tries to open the runtime's event stream, and until it surely is.
const (
	minReconnect = 100 * time.Millisecond
	maxReconnect = 5 * time.Second
	settleTime   = 2 * time.Second
)

// firstCensus waits for the runtime to answer, adopts what is there and removes
// what nobody has any more. It is false if ctx ended first.
func (a *Agent) firstCensus(ctx context.Context) bool {
	for wait := minReconnect; ; wait = min(2*wait, maxReconnect) {
		if a.nameRuntime(ctx) && a.census(ctx) {
			a.sweep()
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-a.cfg.Clock.After(wait):
		}
	}
}

func (a *Agent) nameRuntime(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	is, err := a.cfg.Runtime.Version(ctx, "v1")
	if err != nil {
		return false
	}
	a.runtimeName = is.RuntimeName
	return true
}

// watchRuntime takes the runtime's events as hints, and behind them takes a
// census: after each time the stream was lost, and once a minute.
func (a *Agent) watchRuntime(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { a.followEvents(ctx) })
	if a.cfg.Exits != nil {
		parts.Go(func() { a.followExits(ctx) })
	}
	tick := a.cfg.Clock.NewTicker(resyncPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			parts.Wait()
			return
		case <-tick.C():
			a.puller.ForgetAll()
			a.node.ImagesChanged()
			a.census(ctx)
		}
	}
}

func (a *Agent) followEvents(ctx context.Context) {
	a.reconnect(ctx, "its events", func(ctx context.Context) error {
		// The runtime blocks on a reader that is slow: only note and go on.
		events := make(chan *runtimeapi.ContainerEventResponse, 1000)
		ended := make(chan error, 1)
		opened := make(chan struct{})
		go func() {
			ended <- a.cfg.Runtime.GetContainerEvents(ctx, events, func(runtimeapi.RuntimeService_GetContainerEventsClient) { close(opened) })
		}()
		return a.drain(ctx, events, opened, ended)
	})
}

// drain takes events until the stream ends. What happened before it was open is
// found by a census; the runtime may begin a moment after it says so, hence a
// second one.
func (a *Agent) drain(ctx context.Context, events <-chan *runtimeapi.ContainerEventResponse, opened <-chan struct{}, ended <-chan error) error {
	again := a.cfg.Clock.After(settleTime)
	for {
		select {
		case e := <-events:
			a.hint(e)
		case <-opened:
			opened = nil
			a.census(ctx)
		case <-again:
			again = nil
			a.census(ctx)
		case err := <-ended:
			return err
		}
	}
}

// hint wakes the worker of the Pod that an event is about, unless the event tells
// what is known. Events of a container whose sandbox is gone name no Pod; what
// they tell of was ours to remove.
func (a *Agent) hint(e *runtimeapi.ContainerEventResponse) {
	uid := e.GetPodSandboxStatus().GetMetadata().GetUid()
	for _, c := range e.GetContainersStatuses() {
		if uid == "" {
			uid = c.GetLabels()["io.kubernetes.pod.uid"]
		}
	}
	p := a.get(types.UID(uid))
	if p == nil {
		return
	}
	p.mu.Lock()
	news := p.dirty || !p.state.Agrees(e)
	if news {
		p.dirty = true
	}
	soon := p.landsSoon()
	p.mu.Unlock()
	if news && !soon {
		a.loop.Add(uid)
	}
}

// census compares all that the runtime holds with what is remembered, and says
// whether the runtime answered.
func (a *Agent) census(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	residents, err := a.reader.Census(ctx)
	if err != nil {
		if ctx.Err() == nil {
			a.cfg.Log.Warn("cannot list what the runtime holds", "err", err)
		}
		return false
	}
	known := map[types.UID]bool{}
	for _, p := range a.snapshot() {
		known[p.uid] = true
		p.mu.Lock()
		differs := p.state.Fingerprint() != residents[p.uid].Fingerprint
		p.mu.Unlock()
		if differs {
			a.touch(p.uid)
		}
	}
	for uid, resident := range residents {
		if !known[uid] {
			a.adopt(resident)
		}
	}
	return true
}

// sweep removes, once at the beginning, the files, logs and cgroups of Pods that
// neither the API nor the runtime has.
func (a *Agent) sweep() {
	uids, err := a.volumes.Residents()
	if err != nil {
		a.cfg.Log.Warn("cannot list the files of Pods", "err", err)
	}
	for _, uid := range uids {
		if a.get(uid) != nil {
			continue
		}
		if err := a.volumes.TearDown(uid); err != nil {
			a.cfg.Log.Warn("cannot remove the files of a Pod that no longer exists", "uid", uid, "err", err)
		}
	}
	a.sweepLogs()
}

// serviceList is what the environment of containers is made of.
func serviceList(lister corelisters.ServiceLister) ([]*v1.Service, error) {
	return lister.List(labels.Everything())
}

func sortPods(list []*v1.Pod) {
	slices.SortFunc(list, func(a, b *v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}
