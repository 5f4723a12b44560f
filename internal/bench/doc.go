// Package bench times what a cluster does for Deployments, from outside, through
// any Kubernetes API: scale out, heal, roll, undo, scale in; requests a second;
// the time from a write to its watch event; and what given processes took
// meanwhile. It knows nothing of mend, so that mend and another cluster can be
// timed side by side with the same steps.
//
// Everything happens in a namespace of its own, which is deleted at the end.
package bench
