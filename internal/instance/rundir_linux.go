package instance

import (
	"os"
	"path/filepath"
)

// RunDir holds sockets and other state that ends with the machine's uptime.
// Without root it is below the data directory.
func (i Instance) RunDir() string {
	if os.Geteuid() == 0 {
		return filepath.Join("/run/mend", i.ID)
	}
	return i.Path("run")
}
