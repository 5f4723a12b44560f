// Package schedule runs many small things at given times on an injected clock,
// for rooms that wait for thousands of them at once (probes, simulated
// containers): a heap and one goroutine, and none at all while nothing waits.
package schedule
