//go:build !linux

package doctor

// observeKernel asks nothing: [Examine] says that containers need Linux.
func (seen *Observed) observeKernel() {}
