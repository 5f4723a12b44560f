package containerd

import (
	"embed"
	"io/fs"

	"mend/internal/runtime/containerd/bundle"
)

// payload is what `make -C runtime payload` built, or only a README.
//
//go:embed all:payload
var payload embed.FS

// Bundle opens the programs that this mend carries. It returns bundle.ErrEmpty when it
// was built without them.
func Bundle() (*bundle.Bundle, error) {
	files, err := fs.Sub(payload, "payload")
	if err != nil {
		return nil, err
	}
	return bundle.Open(files)
}

// BuiltinImages is the archive of the images that mend carries: an OCI layout in a tar
// file, with mend.local/pause:1, mend.local/web:1.0 and :2.0.
func BuiltinImages() ([]byte, error) {
	b, err := Bundle()
	if err != nil {
		return nil, err
	}
	return b.Read(ImagesFile)
}

// ImagesFile is the name of the images' archive in the bundle.
const ImagesFile = "images.tar"
