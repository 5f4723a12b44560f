//go:build !linux

package instance

// RunDir holds sockets. Where no containers run it is below the data directory for
// everybody: the system need not have a /run.
func (i Instance) RunDir() string { return i.Path("run") }
