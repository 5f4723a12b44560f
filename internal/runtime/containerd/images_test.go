package containerd_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"mend/internal/runtime/image"
)

// dockerArchive is what `docker save NAME` writes for a small image.
func dockerArchive(t *testing.T, ref, arch string) []byte {
	t.Helper()
	img, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := tarball.MultiWrite(map[name.Tag]v1.Image{tag: img}, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func (w *world) list() []image.Image {
	w.t.Helper()
	all, err := w.builtin.List(w.context())
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

func (w *world) names() []string {
	w.t.Helper()
	var names []string
	for _, i := range w.list() {
		names = append(names, i.Name)
	}
	return names
}

func TestImagesAreImportedListedAndRemoved(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	if got := w.names(); !slices.Equal(got, image.Builtin) {
		t.Errorf("after the first start the images are %v, want %v", got, image.Builtin)
	}

	names, err := w.builtin.Import(w.context(), bytes.NewReader(dockerArchive(t, "thing:1", runtime.GOARCH)))
	if want := []string{"docker.io/library/thing:1"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("the import gave %v, %v; want %v", names, err, want)
	}
	status, err := w.images.ImageStatus(w.context(), &runtimeapi.ImageSpec{Image: "thing:1"}, false)
	if err != nil || status.GetImage() == nil || !status.GetImage().GetPinned() {
		t.Errorf("CRI sees the image as %v (error %v), want it pinned", status, err)
	}
	if !slices.Contains(w.names(), "docker.io/library/thing:1") {
		t.Errorf("the list lacks the imported image: %v", w.names())
	}

	if err := w.builtin.Remove(w.context(), "thing:1"); err != nil {
		t.Fatal(err)
	}
	if got := w.names(); !slices.Equal(got, image.Builtin) {
		t.Errorf("after the removal the images are %v, want %v", got, image.Builtin)
	}
	if err := w.builtin.Remove(w.context(), "thing:1"); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("a second removal gave %v, want %v", err, image.ErrNotFound)
	}
}

func TestBadArchivesAreRefusedWithAReason(t *testing.T) {
	w := newWorld(t)
	w.start()
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	for what, tc := range map[string]struct {
		archive []byte
		want    string
	}{
		"no archive":              {[]byte("this is no archive"), "import the archive"},
		"an empty one":            {nil, "import the archive"},
		"another machine's image": {dockerArchive(t, "thing:1", other), "platform"},
	} {
		names, err := w.builtin.Import(w.context(), bytes.NewReader(tc.archive))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: the import gave %v, %v; want an error with %q", what, names, err, tc.want)
		}
	}
	if got := w.names(); len(got) > 0 {
		t.Errorf("the refused archives left images: %v", got)
	}
}

// runMirror serves the samples as mend does, and ends it with the test.
func (w *world) runMirror() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	mirror := image.Mirror{Client: w.builtin, RegistryDir: w.cfg.RegistryDir(), Log: slog.New(slog.NewTextHandler(w.t.Output(), nil))}
	go func() { ended <- mirror.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				w.t.Error(err)
			}
		case <-time.After(waitLimit):
			w.t.Error("the mirror does not end")
		}
	})
}

func (w *world) pull(name string) error {
	w.t.Helper()
	_, err := w.images.PullImage(w.context(), &runtimeapi.ImageSpec{Image: name}, nil, w.sandboxConfig("one"))
	return err
}

func TestSamplesArePulledFromTheMirror(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	w.runMirror()
	names, err := w.builtin.EnableSamples(w.context(), w.cfg.RegistryDir())
	if err != nil || len(names) != len(image.Samples) {
		t.Fatalf("switching the samples on gave %v, %v; want all %d names", names, err, len(image.Samples))
	}
	for range 2 { // what a pull changes on the name must not keep it from the mirror
		if err := w.pull("nginx"); err != nil {
			t.Fatalf("pull nginx as imagePullPolicy: Always does: %v", err)
		}
	}
	if err := w.builtin.Remove(w.context(), "nginx"); err != nil {
		t.Fatal(err)
	}
	if err := w.pull("nginx"); err != nil {
		t.Fatalf("pull nginx after its removal: %v", err)
	}
	p := w.runPod(w.sandboxConfig("one"), "nginx:1.25")
	if got, want := w.get(p.ip, "80", "/version"), "2.0\n"; got != want {
		t.Errorf("nginx:1.25 answers %q, want the stand-in's %q", got, want)
	}
	for _, i := range w.list() {
		if want := !slices.Contains(image.Builtin, i.Name); i.StandIn != want {
			t.Errorf("%s is listed as stand-in: %v, want %v", i.Name, i.StandIn, want)
		}
	}
	if err := w.pull("nginx:does-not-exist"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("pulling an unknown tag gave %v, want not found", err)
	}
}

func TestSamplesCanBeSwitchedOff(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.importBuiltin()
	w.runMirror()
	if _, err := w.builtin.EnableSamples(w.context(), w.cfg.RegistryDir()); err != nil {
		t.Fatal(err)
	}
	if err := w.pull("nginx"); err != nil { // which names it by digest, too
		t.Fatal(err)
	}
	if _, err := w.builtin.DisableSamples(w.context(), w.cfg.RegistryDir()); err != nil {
		t.Fatal(err)
	}
	if got := w.names(); !slices.Equal(got, image.Builtin) {
		t.Errorf("after switching the samples off the images are %v, want %v", got, image.Builtin)
	}
	w.eventually("the mirror to be signed off", func() bool {
		_, err := os.Stat(filepath.Join(w.cfg.RegistryDir(), "docker.io", "hosts.toml"))
		return errors.Is(err, os.ErrNotExist)
	}, nil)
	if err := w.pull("nginx"); err == nil {
		t.Error("nginx can still be pulled")
	}
}
