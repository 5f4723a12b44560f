// Package loop turns a reconcile function into a running loop: a queue of keys,
// serial work per key, back-off after errors, a look again at a known time, and
// a fence that keeps a panic inside the key that caused it.
//
// A loop is level-based: the queue carries keys, never events, and a key may be
// handed to [Reconciler.Sync] at any time and any number of times. Nothing in
// the queue is durable; after a restart the informers' first list enqueues every
// key again.
//
// The contract is controller-runtime's (keys not events, idempotent, serial per
// key; error → back-off, deadline → recheck at that time) in one noun.
package loop
