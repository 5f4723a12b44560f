package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/fsnotify/fsnotify"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Mirror is a registry on the loopback that serves the stand-ins (Samples), read from
// containerd's own content, and nothing else. containerd asks it before docker.io while
// samples are on, so that imagePullPolicy: Always does what it says, a pull, on a
// machine without a registry. Every other name goes on to the real docker.io.
type Mirror struct {
	// Client is a connection to the instance's containerd.
	Client *Client
	// RegistryDir is containerd.Config.RegistryDir.
	RegistryDir string
	Log         *slog.Logger
}

// Run serves while samples are on, and follows the switch, until ctx ends. It listens
// on a free port of 127.0.0.1. Failures are logged: nothing else depends on it.
func (m Mirror) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for the samples' switch: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(m.RegistryDir); err != nil {
		return fmt.Errorf("watch for the samples' switch: %w", err)
	}
	var stop func()
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	for {
		switch on := SamplesEnabled(m.RegistryDir); {
		case on && stop == nil:
			if stop, err = m.start(ctx); err != nil {
				m.Log.Error("the mirror for the samples does not start", "err", err)
			}
		case !on && stop != nil:
			stop()
			stop = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			m.Log.Error("watching for the samples' switch", "err", err)
		case <-watcher.Events:
		}
	}
}

// start serves and tells containerd where.
func (m Mirror) start(ctx context.Context) (stop func(), err error) {
	// An upgrade of mend may have brought other sample images.
	if _, err := m.Client.addSamples(ctx); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			m.Log.Error("the mirror for the samples ended", "err", err)
		}
	}()
	if err := m.writeHosts(l.Addr().String()); err != nil {
		srv.Close()
		return nil, err
	}
	m.Log.Info("the mirror for the samples serves", "address", l.Addr().String())
	return func() {
		if err := os.RemoveAll(filepath.Dir(hostsFile(m.RegistryDir))); err != nil {
			m.Log.Error("the mirror for the samples could not be signed off", "err", err)
		}
		srv.Close()
	}, nil
}

// writeHosts names the mirror to containerd, which reads this at each pull. The real
// registry stays behind it.
func (m Mirror) writeHosts(address string) error {
	path := hostsFile(m.RegistryDir)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	text := fmt.Sprintf("server = \"https://registry-1.docker.io\"\n\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", address)
	tmp := filepath.Join(m.RegistryDir, ".hosts.toml")
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// ServeHTTP answers the part of the OCI distribution protocol that a pull uses.
func (m Mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "read only", http.StatusMethodNotAllowed)
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/v2/")
	if !ok {
		http.NotFound(w, r)
		return
	}
	if rest == "" {
		w.WriteHeader(http.StatusOK)
		return
	}
	if err := m.serve(w, r, rest); err != nil {
		m.fail(w, r, err)
	}
}

func (m Mirror) fail(w http.ResponseWriter, r *http.Request, err error) {
	code, name := http.StatusInternalServerError, "UNKNOWN"
	if errors.Is(err, ErrNotFound) {
		code, name = http.StatusNotFound, "MANIFEST_UNKNOWN"
	} else {
		m.Log.Error("the mirror for the samples", "path", r.URL.Path, "err", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"errors":[{"code":%q,"message":"not among the samples"}]}`, name)
}

// serve answers <repository>/manifests/<tag or digest> and <repository>/blobs/<digest>.
func (m Mirror) serve(w http.ResponseWriter, r *http.Request, path string) error {
	for _, kind := range []string{"/manifests/", "/blobs/"} {
		at := strings.LastIndex(path, kind)
		if at < 0 {
			continue
		}
		wanted := path[at+len(kind):]
		images, err := m.samplesOf(r.Context(), "docker.io/"+path[:at])
		if err != nil {
			return err
		}
		for tag, image := range images {
			d, err := m.find(r.Context(), image, kind == "/manifests/", tag, wanted)
			if err != nil {
				return err
			}
			if d.Digest != "" {
				return m.send(w, r, d)
			}
		}
	}
	return fmt.Errorf("%w: %s", ErrNotFound, path)
}

// samplesOf are the sample images of a repository by tag.
func (m Mirror) samplesOf(ctx context.Context, repository string) (map[string]*imagesapi.Image, error) {
	images := map[string]*imagesapi.Image{}
	for name, from := range Samples {
		tag, ok := strings.CutPrefix(name, repository+":")
		if !ok {
			continue
		}
		image, err := m.Client.get(ctx, from)
		if err != nil {
			return nil, err
		}
		images[tag] = image
	}
	return images, nil
}

// find returns the manifest or blob that is wanted if it is this image's, or an empty
// descriptor.
func (m Mirror) find(ctx context.Context, image *imagesapi.Image, manifests bool, tag, wanted string) (ocispec.Descriptor, error) {
	target := image.GetTarget()
	if manifests {
		if wanted != tag && wanted != target.GetDigest() {
			return ocispec.Descriptor{}, nil
		}
		return toOCI(target.GetMediaType(), target.GetDigest(), target.GetSize()), nil
	}
	manifest, err := m.Client.manifest(ctx, target)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	for _, d := range append(manifest.Layers, manifest.Config) {
		if d.Digest.String() == wanted {
			return toOCI("application/octet-stream", wanted, d.Size), nil
		}
	}
	return ocispec.Descriptor{}, nil
}

func (m Mirror) send(w http.ResponseWriter, r *http.Request, d ocispec.Descriptor) error {
	w.Header().Set("Content-Type", d.MediaType)
	w.Header().Set("Content-Length", strconv.FormatInt(d.Size, 10))
	w.Header().Set("Docker-Content-Digest", d.Digest.String())
	if r.Method == http.MethodHead {
		return nil
	}
	return m.Client.copyBlob(r.Context(), w, d.Digest.String())
}
