package containerd

import (
	"embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mend/internal/runtime/containerd/bundle"
)

// payload is what `make -C runtime payload` built, or only a README.
//
//go:embed all:payload
var payload embed.FS

// Bundle opens the programs that this mend carries. It returns ErrEmpty when it was
// built without them.
func Bundle() (*bundle.Bundle, error) {
	files, err := fs.Sub(payload, "payload")
	if err != nil {
		return nil, err
	}
	return bundle.Open(files)
}

// ErrEmpty is what Bundle and Start return in a mend without payload.
var ErrEmpty = bundle.ErrEmpty

// ImagesFile is the name of the images' archive in the bundle.
const ImagesFile = "images.tar"

// BuiltinImages is the archive of the images that mend carries: an OCI layout in a tar
// file, with mend.local/pause:1, mend.local/web:1.0 and :2.0. It is some 7 MB; where a
// Supervisor runs, its OpenImages gives the same without holding it in memory.
func BuiltinImages() ([]byte, error) {
	b, err := Bundle()
	if err != nil {
		return nil, err
	}
	return b.Read(ImagesFile)
}

// OpenImages opens the unpacked archive of the images that mend carries.
func (s *Supervisor) OpenImages() (io.ReadCloser, error) {
	return os.Open(filepath.Join(s.bin, ImagesFile))
}

// releaseText gives back the memory that reading the payload has made resident: 25 MB
// of this program's own file, which would count as ours for as long as memory is
// plenty. The pages are clean and come back from the file when they are touched.
func releaseText() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		// 00400000-00452000 r--p 00000000 08:02 173521   /usr/bin/mend
		fields := strings.Fields(line)
		if len(fields) != 6 || fields[1] != "r--p" || fields[5] != exe {
			continue
		}
		var start, end uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &start, &end); err != nil {
			return fmt.Errorf("unexpected line of /proc/self/maps: %q", line)
		}
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED)
		if errno != 0 {
			return fmt.Errorf("give back the payload's memory: %w", errno)
		}
	}
	return nil
}
