// Package podruntime says what the container runtime holds of one Pod: its
// sandboxes and its containers, newest first, as plain values.
//
// It promises a [State] that is true of some moment after the call began. It
// reads the runtime over CRI and nothing else, writes nothing, and keeps only a
// cache of answers that can no longer change (the end of a container, the
// addresses of a sandbox).
package podruntime
