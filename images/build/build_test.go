package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

func buildOnce(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	pause, web, out := filepath.Join(dir, "pause"), filepath.Join(dir, "web"), filepath.Join(dir, "images.tar")
	for path, content := range map[string]string{pause: "the pause program", web: "the web program"} {
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := build("amd64", pause, web, out); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTheSameInputsGiveTheSameBytes(t *testing.T) {
	if !bytes.Equal(buildOnce(t), buildOnce(t)) {
		t.Error("two builds of the same inputs differ")
	}
}

// extracted unpacks an archive into a folder.
func extracted(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheArchiveHoldsTheImagesThatMendNames(t *testing.T) {
	index, err := layout.ImageIndexFromPath(extracted(t, buildOnce(t)))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range manifest.Manifests {
		name := d.Annotations["io.containerd.image.name"]
		names = append(names, name)
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := config.OS + "/" + config.Architecture; got != "linux/amd64" {
			t.Errorf("%s is for %s", name, got)
		}
		version := config.Config.Labels["VERSION"]
		if want := map[string]string{"mend.local/web:1.0": "1.0", "mend.local/web:2.0": "2.0"}[name]; version != want {
			t.Errorf("%s has the label VERSION=%q, want %q", name, version, want)
		}
		if version != "" && !slices.Contains(config.Config.Env, "VERSION="+version) {
			t.Errorf("%s has the environment %v", name, config.Config.Env)
		}
	}
	if want := []string{"mend.local/pause:1", "mend.local/web:1.0", "mend.local/web:2.0"}; !slices.Equal(names, want) {
		t.Errorf("the archive has %v, want %v", names, want)
	}
}
