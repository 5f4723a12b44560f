// Package image makes sure that a container's image is on the node: it looks,
// pulls with the credentials of the Pod's pull secrets, and says in the kubelet's
// words what went wrong.
//
// It promises one pull at a time per image; a second asker waits and then finds
// it there. Presence is remembered until [Puller.Forget] or [Puller.ForgetAll],
// because looking is on the path of every container start.
package image
