// Build writes the archive of mend's own images: the pause image and the sample web
// image in two versions, as one OCI layout in a tar file.
//
//	go run ./images/build -arch amd64 -pause FILE -web FILE -o images.tar
//
// The same inputs give the same bytes: times are zero, order is fixed, and layers are
// not compressed, since mend compresses the archive as a whole and containerd then
// unpacks them at once.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	arch := flag.String("arch", "", "GOARCH of the programs")
	pause := flag.String("pause", "", "the pause `program`")
	web := flag.String("web", "", "the web `program`")
	out := flag.String("o", "", "`archive` to write")
	flag.Parse()
	if *arch == "" || *pause == "" || *web == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := build(*arch, *pause, *web, *out); err != nil {
		fmt.Fprintln(os.Stderr, "images/build:", err)
		os.Exit(1)
	}
}

func build(arch, pause, web, out string) error {
	images, err := describe(pause, web)
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, d := range images {
		img, err := d.image(arch)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img,
			Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: "linux", Architecture: arch},
				// What containerd and others look for when they import.
				Annotations: map[string]string{
					"io.containerd.image.name":          d.name,
					"org.opencontainers.image.ref.name": d.name,
				},
			},
		})
	}
	dir, err := os.MkdirTemp("", "mend-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, index); err != nil {
		return err
	}
	return archive(dir, out)
}

// description is one image: a layer and what its config says.
type description struct {
	name   string
	layer  []byte
	config v1.Config
}

func (d description) image(arch string) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(img, mutate.Addendum{
		Layer:   static.NewLayer(d.layer, types.OCIUncompressedLayer),
		History: v1.History{CreatedBy: "mend images/build"},
	})
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", arch, d.config
	return mutate.ConfigFile(img, file)
}

// describe lists the images that mend carries.
func describe(pause, web string) ([]description, error) {
	pauseLayer, err := pauseTree(pause)
	if err != nil {
		return nil, err
	}
	webLayer, err := webTree(web)
	if err != nil {
		return nil, err
	}
	images := []description{{
		name:   "mend.local/pause:1",
		layer:  pauseLayer,
		config: v1.Config{Entrypoint: []string{"/pause"}, WorkingDir: "/", Labels: map[string]string{"org.opencontainers.image.title": "mend pause"}},
	}}
	for _, version := range []string{"1.0", "2.0"} {
		images = append(images, description{
			name:  "mend.local/web:" + version,
			layer: webLayer,
			config: v1.Config{
				Entrypoint:   []string{"/bin/web"},
				Env:          []string{"PATH=/bin", "VERSION=" + version},
				WorkingDir:   "/",
				ExposedPorts: map[string]struct{}{"80/tcp": {}, "8080/tcp": {}},
				Labels:       map[string]string{"org.opencontainers.image.title": "mend sample web server", "VERSION": version},
			},
		})
	}
	return images, nil
}

func pauseTree(program string) ([]byte, error) {
	t := newTree()
	t.file("pause", program, 0o755)
	return t.bytes()
}

// links are the names under which the web program is also a small command.
var links = []string{"cat", "curl", "echo", "env", "false", "hostname", "kill", "ls", "sh", "sleep", "touch", "true"}

func webTree(program string) ([]byte, error) {
	t := newTree()
	t.dir("bin", 0o755)
	t.file("bin/web", program, 0o755)
	for _, name := range links {
		t.link("bin/"+name, "web")
	}
	t.dir("etc", 0o755)
	t.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
	t.text("etc/group", "root:x:0:\nnobody:x:65534:\n")
	t.dir("root", 0o700)
	t.dir("tmp", 0o1777)
	return t.bytes()
}

// tree writes a layer: a tar file without times or owners' names.
type tree struct {
	buf bytes.Buffer
	tar *tar.Writer
	err error
}

func newTree() *tree {
	t := &tree{}
	t.tar = tar.NewWriter(&t.buf)
	return t
}

func (t *tree) add(h tar.Header, content []byte) {
	if t.err != nil {
		return
	}
	h.Format, h.ModTime, h.Size = tar.FormatPAX, time.Unix(0, 0).UTC(), int64(len(content))
	if t.err = t.tar.WriteHeader(&h); t.err == nil {
		_, t.err = t.tar.Write(content)
	}
}

func (t *tree) dir(name string, mode int64) {
	t.add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (t *tree) link(name, target string) {
	t.add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

func (t *tree) text(name, content string) {
	t.add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(content))
}

func (t *tree) file(name, from string, mode int64) {
	content, err := os.ReadFile(from)
	if err != nil && t.err == nil {
		t.err = err
	}
	t.add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content)
}

func (t *tree) bytes() ([]byte, error) {
	if err := t.tar.Close(); t.err == nil {
		t.err = err
	}
	return t.buf.Bytes(), t.err
}

// archive packs a layout folder in a fixed order, the index and the layout marker
// first, so that a reader that streams knows early what it gets.
func archive(dir, out string) error {
	var names []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	sort.Slice(names, func(i, j int) bool {
		// oci-layout and index.json lie at the top: shorter paths first.
		if a, b := filepath.Dir(names[i]) == dir, filepath.Dir(names[j]) == dir; a != b {
			return a
		}
		return names[i] < names[j]
	})
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, path := range names {
		if err := copyInto(w, dir, path); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}

func copyInto(w *tar.Writer, dir, path string) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: info.Size(), ModTime: time.Unix(0, 0).UTC(), Format: tar.FormatPAX})
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
