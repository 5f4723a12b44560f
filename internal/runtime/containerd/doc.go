// Package containerd runs the container runtime that mend carries: it unpacks
// containerd, its shim, runc and the CNI plugin, starts containerd with a
// configuration in which every path is the instance's own, and watches it.
//
// Promised:
//   - containerd runs in a session of its own. When mend dies or is upgraded it goes
//     on, and so do the containers, and the next Start adopts it.
//   - It is found again by what it is: the process that listens on our socket, with
//     the start time that was written down. Never by name.
//   - It is watched through a pidfd. When it dies it is started again, with a back-off
//     from 0 to 10 s; the containers, which belong to their shims, do not notice.
//   - Only one Supervisor per instance: a lock in the run directory.
//   - Purge leaves nothing: no process, mount, namespace, cgroup, socket or file. It
//     never deletes through a mount or a link.
//
// Read and written: <data>/bin, <data>/containerd, <data>/cni (containerd's working
// directory, where libcni keeps its results), <data>/logs/containerd.log, and below
// the run directory everything that does not outlive a boot.
//
//	state     means                                   goes to
//	starting  Start unpacks and waits for CRI         running, or Start fails
//	running   CRI answers                             waiting (it died), released, stopped
//	waiting   it died; back-off                       running, released, stopped
//	released  mend ends, containerd goes on           —
//	stopped   containerd has ended                    —
package containerd
