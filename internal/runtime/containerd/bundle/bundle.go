package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

const (
	// ManifestName is the manifest's file name inside a bundle.
	ManifestName = "manifest.json"
	// Suffix is what a packed file's name has more than the unpacked one's.
	Suffix = ".zst"
)

// ErrEmpty says that a bundle has no manifest: mend was built without its payload.
var ErrEmpty = errors.New("this mend was built without its container runtime (make -C runtime payload, then build again)")

// Manifest lists a bundle's files, sorted by name.
type Manifest struct {
	Files []File `json:"files"`
}

// File is one file as it is after unpacking. SHA256 is in hex, Size in bytes.
type File struct {
	Name       string `json:"name"`
	SHA256     string `json:"sha256"`
	Size       int64  `json:"size"`
	Executable bool   `json:"executable,omitempty"`
}

// Has reports whether the manifest lists exactly this file.
func (m Manifest) Has(want File) bool {
	for _, f := range m.Files {
		if f == want {
			return true
		}
	}
	return false
}

// Bundle is an opened bundle.
type Bundle struct {
	files    fs.FS
	manifest Manifest
	id       string
}

// Open reads the manifest of the bundle in files. It returns ErrEmpty when there is
// none.
func Open(files fs.FS) (*Bundle, error) {
	b, err := fs.ReadFile(files, ManifestName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrEmpty
	}
	if err != nil {
		return nil, fmt.Errorf("read the bundle: %w", err)
	}
	sum := sha256.Sum256(b)
	bundle := &Bundle{files: files, id: hex.EncodeToString(sum[:])}
	if err := json.Unmarshal(b, &bundle.manifest); err != nil {
		return nil, fmt.Errorf("read the bundle's manifest: %w", err)
	}
	return bundle, nil
}

// ID names the bundle's content: 64 hex digits.
func (b *Bundle) ID() string { return b.id }

// Unpack puts the bundle's files into <parent>/<ID> and returns that folder. When it
// is there already, only names and sizes are checked. Files are 0755 or 0644, folders
// 0755, all owned by the caller.
func (b *Bundle) Unpack(parent string) (string, error) {
	dir := filepath.Join(parent, b.id)
	if b.complete(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	aside, err := os.MkdirTemp(parent, ".unpack-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(aside)
	if err := os.Chmod(aside, 0o755); err != nil {
		return "", err
	}
	var group errgroup.Group
	for _, f := range b.manifest.Files {
		group.Go(func() error { return b.unpackFile(aside, f) })
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	if err := syncDir(aside); err != nil {
		return "", err
	}
	if err := b.install(aside, dir); err != nil {
		return "", fmt.Errorf("put the unpacked programs into place: %w", err)
	}
	return dir, syncDir(parent)
}

// install renames the finished folder to its name. A damaged folder of that name is
// moved out of the way first; programs that run from it keep their files.
func (b *Bundle) install(aside, dir string) error {
	err := os.Rename(aside, dir)
	if err == nil || b.complete(dir) { // another mend was faster
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	broken := aside + ".broken"
	if err := os.Rename(dir, broken); err != nil {
		return err
	}
	defer os.RemoveAll(broken)
	return os.Rename(aside, dir)
}

// complete reports whether the folder holds every file with its size.
func (b *Bundle) complete(dir string) bool {
	for _, f := range b.manifest.Files {
		info, err := os.Lstat(filepath.Join(dir, f.Name))
		if err != nil || !info.Mode().IsRegular() || info.Size() != f.Size {
			return false
		}
	}
	return true
}

func (b *Bundle) unpackFile(dir string, f File) error {
	if !filepath.IsLocal(f.Name) || filepath.Base(f.Name) != f.Name {
		return fmt.Errorf("the bundle names a file %q", f.Name)
	}
	mode := fs.FileMode(0o644)
	if f.Executable {
		mode = 0o755
	}
	out, err := os.OpenFile(filepath.Join(dir, f.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	h := sha256.New()
	err = b.copyFile(io.MultiWriter(out, h), f)
	if err == nil {
		err = out.Sync()
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", f.Name, err)
	}
	if got := sum(h); got != f.SHA256 {
		return fmt.Errorf("unpack %s: its content has the hash %s where the manifest says %s", f.Name, got, f.SHA256)
	}
	return os.Chmod(out.Name(), mode) // whatever the umask
}

func (b *Bundle) copyFile(w io.Writer, f File) error {
	packed, err := b.files.Open(f.Name + Suffix)
	if err != nil {
		return err
	}
	defer packed.Close()
	z, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
	if err != nil {
		return err
	}
	defer z.Close()
	_, err = io.Copy(w, io.LimitReader(z, f.Size+1))
	return err
}

// Read returns one unpacked file's content from the bundle itself.
func (b *Bundle) Read(name string) ([]byte, error) {
	for _, f := range b.manifest.Files {
		if f.Name == name {
			var buf bytes.Buffer
			err := b.copyFile(&buf, f)
			return buf.Bytes(), err
		}
	}
	return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
