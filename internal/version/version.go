// Package version holds what the build stamped into the binary. The Makefile
// sets the variables with -ldflags -X; a plain `go build` leaves the defaults.
//
// The Kubernetes version that /version answers is stamped separately, into
// k8s.io/component-base/version.
package version

// Version is mend's own semantic version, without a leading v.
var Version = "0.1.0-dev"

// Kubernetes is the Kubernetes release whose API mend serves. It names the
// k8s.io/kubernetes version in go.mod; a test compares the two.
const Kubernetes = "1.37.2"
