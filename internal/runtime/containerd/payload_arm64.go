package containerd

import "embed"

// payload is what `make -C runtime payload` built for this architecture, or only a
// README.
//
//go:embed all:payload/arm64
var payload embed.FS
