// Package app is the only wiring of mend: it starts the parts of one process in
// order, hands them to each other, and stops them.
//
//	lock, id ─ store ─ API server ─ informers ─ loops, scheduler ─┐
//	         ─ containerd (child) ─ network ─ images ─────────────┴─ agent ─ node Ready
//
// The two rows start side by side. loops.go holds the one list of everything
// that reconciles, with what each reads and what it alone writes.
//
// app keeps no state of the cluster. A kill at any moment leaves containerd and
// the containers running; the next start adopts them.
package app
