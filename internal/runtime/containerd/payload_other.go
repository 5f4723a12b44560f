//go:build !amd64 && !arm64

package containerd

import "embed"

// payload is empty: nothing is built for this architecture.
var payload embed.FS
