package agent

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"mend/internal/agent/podruntime"
)

// podSeen takes a Pod of this node as the API has it.
func (a *Agent) podSeen(obj *v1.Pod) {
	a.mu.Lock()
	p := a.all[obj.UID]
	fresh := p == nil
	if fresh {
		p = newPod(obj.UID)
		// Until the runtime was looked at, it may hold something of the Pod; a Pod
		// that has no status yet has never been touched.
		p.dirty = obj.Status.StartTime != nil || obj.DeletionTimestamp != nil
		a.all[obj.UID] = p
	}
	a.mu.Unlock()
	switch {
	case podEnded(obj):
		a.room.leave(obj.UID)
	case fresh && obj.Status.StartTime == nil && obj.DeletionTimestamp == nil:
		refused := a.admit(obj)
		p.mu.Lock()
		p.refused = refused
		p.mu.Unlock()
	case fresh:
		a.room.hold(obj)
	}
	p.mu.Lock()
	same := p.api != nil && p.api.ResourceVersion == obj.ResourceVersion
	if p.newer(obj) {
		p.api = obj
	}
	p.orphan, p.gone = false, false
	p.mu.Unlock()
	if !same { // our own write comes back
		a.loop.Add(string(obj.UID))
	}
}

// podGone takes a Pod that the API has no more.
func (a *Agent) podGone(obj *v1.Pod) {
	a.room.leave(obj.UID)
	p := a.get(obj.UID)
	if p == nil {
		return
	}
	p.mu.Lock()
	p.gone = true
	if p.api == nil || p.newer(obj) {
		p.api = obj
	}
	p.mu.Unlock()
	a.loop.Add(string(obj.UID))
}

// touch has a Pod's runtime state looked at.
func (a *Agent) touch(uid types.UID) {
	p := a.get(uid)
	if p == nil {
		return
	}
	p.mu.Lock()
	p.dirty = true
	p.mu.Unlock()
	a.loop.Add(string(uid))
}

// landsSoon says whether an action is under way that takes a moment only and
// whose end wakes the worker. Callers hold p.mu.
func (p *pod) landsSoon() bool {
	for _, f := range p.flights {
		switch f.Action.Kind {
		case RunSandbox, StopSandbox, RemoveContainer, RemoveSandbox:
			return true
		case StartContainer:
			c := findContainer(&p.api.Spec, f.Action.Container)
			return c == nil || c.Lifecycle == nil || c.Lifecycle.PostStart == nil
		case SetUpVolumes, EnsureImage, LeaveEndpoints, KillContainer, TearDown, DeletePod, Abandon, Forget:
		}
	}
	return false
}

// adopt takes charge of what the runtime holds of a Pod that the API does not
// have, to end and remove it. The Pod is made up of what the labels say.
func (a *Agent) adopt(resident podruntime.Resident) {
	a.mu.Lock()
	if a.all[resident.UID] != nil {
		a.mu.Unlock()
		return
	}
	p := newPod(resident.UID)
	p.gone, p.orphan, p.dirty = true, true, true
	p.api = &v1.Pod{}
	p.api.UID, p.api.Namespace, p.api.Name = resident.UID, resident.Namespace, resident.Name
	p.api.Spec.TerminationGracePeriodSeconds = resident.TerminationGracePeriod
	a.all[resident.UID] = p
	a.mu.Unlock()
	a.cfg.Log.Info("end what is left of a Pod that no longer exists", "pod", resident.Namespace+"/"+resident.Name, "uid", resident.UID)
	a.loop.Add(string(resident.UID))
}

// forget drops everything remembered of a Pod.
func (a *Agent) forget(p *pod) {
	a.probes.RemovePod(p.uid)
	a.mu.Lock()
	delete(a.all, p.uid)
	a.mu.Unlock()
	p.mu.Lock()
	p.forgot = true
	a.reader.Forget(p.state)
	pod := p.api
	p.mu.Unlock()
	// It may be back, if the API's state was restored from before its deletion.
	if obj, ok, err := a.pods.GetStore().GetByKey(pod.Namespace + "/" + pod.Name); err == nil && ok && obj.(*v1.Pod).UID == p.uid {
		a.podSeen(obj.(*v1.Pod))
	}
}

// PodByName finds a Pod of this node, with the status last generated.
func (a *Agent) PodByName(namespace, name string) (*v1.Pod, bool) {
	var found *v1.Pod
	for _, p := range a.snapshot() {
		if !p.is(namespace, name) {
			continue
		}
		pod := p.withStatus()
		if pod == nil {
			continue
		}
		// A deleted Pod and its successor of the same name may both be here.
		if found == nil || found.CreationTimestamp.Before(&pod.CreationTimestamp) {
			found = pod
		}
	}
	return found, found != nil
}

// Pods lists the Pods of this node, with the statuses last generated, by
// namespace and name.
func (a *Agent) Pods() []*v1.Pod {
	var list []*v1.Pod
	for _, p := range a.snapshot() {
		if pod := p.withStatus(); pod != nil {
			list = append(list, pod)
		}
	}
	sortPods(list)
	return list
}

func (p *pod) is(namespace, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.api != nil && p.api.Name == name && p.api.Namespace == namespace
}

// withStatus is a copy of the Pod for others to read; nil for an orphan.
func (p *pod) withStatus() *v1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.api == nil || p.orphan {
		return nil
	}
	pod := p.api.DeepCopy()
	if p.status != nil {
		pod.Status = *p.status.DeepCopy()
	}
	return pod
}

// ContainerID finds the newest instance of a container, or with previous the one
// before it, and its log.
func (a *Agent) ContainerID(uid types.UID, container string, previous bool) (id, logPath string, ok bool) {
	p := a.get(uid)
	if p == nil {
		return "", "", false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	instances := p.state.Instances(container)
	// One that was created and never ran has no log and no processes.
	for len(instances) > 0 && instances[0].Phase == podruntime.Created {
		instances = instances[1:]
	}
	if previous && len(instances) > 0 {
		instances = instances[1:]
	}
	if len(instances) == 0 || p.api == nil {
		return "", "", false
	}
	c := instances[0]
	logPath = c.LogPath
	if logPath == "" || !strings.HasPrefix(logPath, "/") {
		logPath = a.host.ContainerLog(p.api, container, c.Attempt)
	}
	return c.ID, logPath, true
}

// SandboxID finds the Pod's active sandbox.
func (a *Agent) SandboxID(uid types.UID) (string, bool) {
	p := a.get(uid)
	if p == nil {
		return "", false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	active := p.state.ActiveSandbox()
	if active == nil {
		return "", false
	}
	return active.ID, true
}
