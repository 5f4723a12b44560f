package agent

import (
	"context"
	"net"

	"mend/internal/agent/kubeletapi"
	"mend/internal/agent/podruntime"
)

// newServer makes the server of the kubelet's HTTP API; nil without a listener.
func (a *Agent) newServer() (*kubeletapi.Server, error) {
	if a.cfg.KubeletListen == nil {
		return nil, nil
	}
	return kubeletapi.New(kubeletapi.Config{
		NodeName: a.cfg.NodeName, Pods: a, Runtime: a.cfg.Runtime, Images: a.cfg.Images, TLS: a.cfg.KubeletTLS,
		Authorizer: a.cfg.Authorizer, Clock: a.cfg.Clock, Log: a.cfg.Log,
	})
}

// serve serves the kubelet's HTTP API until ctx ends.
func (a *Agent) serve(ctx context.Context) {
	if a.server == nil {
		return
	}
	if err := a.server.Serve(ctx, a.cfg.KubeletListen); err != nil && ctx.Err() == nil {
		a.cfg.Log.Error("the kubelet API ended; logs, exec and port-forward do not work", "err", err)
	}
}

func port(l net.Listener) int32 {
	if l == nil {
		return 0
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		return int32(tcp.Port)
	}
	return 0
}

var (
	_ kubeletapi.PodSource  = (*Agent)(nil)
	_ kubeletapi.EndWatcher = (*Agent)(nil)
)

// Ended is closed when a container has ended; nil if the container is not known.
func (a *Agent) Ended(containerID string) <-chan struct{} {
	for _, p := range a.snapshot() {
		if ended := p.endOf(containerID); ended != nil {
			return ended
		}
	}
	return nil
}

func (p *pod) endOf(id string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.state.Containers {
		if c.ID != id {
			continue
		}
		ended := p.ends[id]
		if ended == nil {
			ended = make(chan struct{})
			if c.Phase == podruntime.Exited {
				close(ended)
				return ended
			}
			p.ends[id] = ended
		}
		return ended
	}
	return nil
}

// tellEnds closes the channels of containers that have ended. Callers hold p.mu.
func (p *pod) tellEnds() {
	if len(p.ends) == 0 {
		return
	}
	live := map[string]bool{}
	for _, c := range p.state.Containers {
		live[c.ID] = c.Phase != podruntime.Exited
	}
	for id, ended := range p.ends {
		if !live[id] {
			close(ended)
			delete(p.ends, id)
		}
	}
}
