package agent

import (
	"context"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// netNSTimeout bounds the question where a Pod's network namespace is.
const netNSTimeout = 5 * time.Second

// leaveEndpoints returns when no request reaches the Pod any more.
func (a *Agent) leaveEndpoints(ctx context.Context, p *pod) error {
	v := a.viewOf(p)
	select {
	case <-a.cfg.Gate.LeftEndpoints(ctx, v.pod):
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.mu.Lock()
	p.leftAt = a.cfg.Clock.Now()
	p.mu.Unlock()
	return nil
}

// NetNS is the path of a Pod's network namespace; false when the Pod has none of
// its own, or the runtime does not say.
func (a *Agent) NetNS(uid types.UID) (path string, ok bool) {
	id, ok := a.SandboxID(uid)
	if !ok {
		return "", false
	}
	ctx, cancel := context.WithTimeout(a.actions, netNSTimeout)
	defer cancel()
	resp, err := a.cfg.Runtime.PodSandboxStatus(ctx, id, true)
	if err != nil {
		a.cfg.Log.Debug("the runtime does not tell a Pod's network namespace", "uid", uid, "err", err)
		return "", false
	}
	return netNSOf(resp.GetInfo()["info"])
}

// netNSOf finds the path in containerd's verbose answer, which holds the OCI
// specification of the sandbox. A Pod in the host's network has none there.
func netNSOf(info string) (path string, ok bool) {
	var sandbox struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	if err := json.Unmarshal([]byte(info), &sandbox); err != nil {
		return "", false
	}
	for _, namespace := range sandbox.RuntimeSpec.Linux.Namespaces {
		if namespace.Type == "network" && namespace.Path != "" {
			return namespace.Path, true
		}
	}
	return "", false
}
