package containerd

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"mend/internal/runtime/containerd/bundle"
)

// Bundle opens the programs that this mend carries. It returns ErrEmpty when it was
// built without them.
func Bundle() (*bundle.Bundle, error) {
	files, err := fs.Sub(payload, "payload/"+runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	return bundle.Open(files)
}

// ErrEmpty is what Bundle and Start return in a mend without payload.
var ErrEmpty = bundle.ErrEmpty

// ImagesFile is the name of the images' archive in the bundle.
const ImagesFile = "images.tar"

// OpenImages opens the unpacked archive of the images that mend carries: an OCI layout
// in a tar file, with mend.local/pause:1, mend.local/web:1.0 and :2.0.
func (s *Supervisor) OpenImages() (io.ReadCloser, error) {
	return os.Open(filepath.Join(s.bin, ImagesFile))
}
