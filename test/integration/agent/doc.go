// Package agent tests the node agent in process: the real API server, real
// client-go, the simulated runtime.
package agent
