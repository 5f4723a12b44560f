// Package walljump lets the wall clock of one process jump: a mend that is built with
// the tag walljump (Linux, amd64) sees it a day later with each SIGUSR1, and a day
// earlier with each SIGUSR2. The monotonic clock goes on, as it does when somebody
// sets a machine's clock. Without the tag the package is empty, so that no released
// binary can be told the time.
//
// It stands where the Go runtime has the kernel's clock_gettime, so that all of the
// process sees the jump: loops, API server, store, TLS.
package walljump
