// Package app is the only wiring of mend: it starts the parts of one process in
// order, hands them to each other, and stops them.
//
//	lock, id ─ store ─ API server ─ informers ─ loops, scheduler ─┐
//	         ─ network ─ containerd (child) ─ images ─────────────┴─ proxy, DNS (child) ─ agent ─ node Ready
//
// The two rows start side by side. Simulated nodes (fleet.go) need only the first; they
// also come and go while mend runs. loops.go holds the one list of everything
// that reconciles, with what each reads and what it alone writes.
//
// app keeps no state of the cluster. A kill at any moment leaves containerd, the
// containers, the rules of Services and the DNS in place; the next start adopts them.
package app
