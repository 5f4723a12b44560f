package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
)

// packed builds a bundle from file contents; names with a leading * are programs.
func packed(t *testing.T, contents map[string]string) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{"README": {Data: []byte("not listed")}}
	var m Manifest
	for name, content := range contents {
		plain, executable := strings.CutPrefix(name, "*")
		sum := sha256.Sum256([]byte(content))
		m.Files = append(m.Files, File{Name: plain, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content)), Executable: executable})
		var buf bytes.Buffer
		z, err := zstd.NewWriter(&buf)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := z.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		files[plain+Suffix] = &fstest.MapFile{Data: buf.Bytes()}
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	files[ManifestName] = &fstest.MapFile{Data: b}
	return files
}

func open(t *testing.T, files fstest.MapFS) *Bundle {
	t.Helper()
	b, err := Open(files)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestUnpackWritesEveryFileUnderTheBundlesName(t *testing.T) {
	b := open(t, packed(t, map[string]string{"*runc": "a program", "images.tar": "images"}))
	parent := filepath.Join(t.TempDir(), "bin")
	dir, err := b.Unpack(parent)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(parent, b.ID()); dir != want || len(b.ID()) != 64 {
		t.Errorf("unpacked into %s, want %s with an id of 64 digits", dir, want)
	}
	for name, want := range map[string]struct {
		content string
		mode    os.FileMode
	}{"runc": {"a program", 0o755}, "images.tar": {"images", 0o644}} {
		path := filepath.Join(dir, name)
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want.content || info.Mode() != want.mode {
			t.Errorf("%s has %q with mode %v, want %q with %v", name, got, info.Mode(), want.content, want.mode)
		}
	}
}

func TestUnpackLeavesAWholeFolderAlone(t *testing.T) {
	b := open(t, packed(t, map[string]string{"*runc": "a program"}))
	parent := filepath.Join(t.TempDir(), "bin")
	var seen []os.FileInfo
	for range 2 {
		dir, err := b.Unpack(parent)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, "runc"))
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, info)
	}
	if !os.SameFile(seen[0], seen[1]) {
		t.Error("a second unpacking replaced a file that may be running")
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
		t.Errorf("the parent folder holds %v (%v), want only the bundle", entries, err)
	}
}

func TestUnpackRepairsADamagedFolder(t *testing.T) {
	b := open(t, packed(t, map[string]string{"*runc": "a program"}))
	parent := t.TempDir()
	dir, err := b.Unpack(parent)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "runc"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Unpack(parent); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "runc")); err != nil || string(got) != "a program" {
		t.Errorf("after the repair the program reads %q, %v", got, err)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
		t.Errorf("the parent folder holds %v (%v), want only the bundle", entries, err)
	}
}

func TestUnpackRefusesContentThatIsNotTheManifests(t *testing.T) {
	other := packed(t, map[string]string{"*runc": "another program"})
	for what, change := range map[string]func(fstest.MapFS){
		"other content": func(f fstest.MapFS) { f["runc"+Suffix] = other["runc"+Suffix] },
		"no zstd":       func(f fstest.MapFS) { f["runc"+Suffix] = &fstest.MapFile{Data: []byte("garbage")} },
		"a file missing": func(f fstest.MapFS) {
			delete(f, "runc"+Suffix)
		},
		"a name that leads out": func(f fstest.MapFS) {
			f[ManifestName] = &fstest.MapFile{Data: []byte(`{"files":[{"name":"../runc"}]}`)}
		},
	} {
		t.Run(what, func(t *testing.T) {
			files := packed(t, map[string]string{"*runc": "a program"})
			change(files)
			parent := t.TempDir()
			if dir, err := open(t, files).Unpack(parent); err == nil {
				t.Errorf("it was unpacked into %s", dir)
			}
			if entries, err := os.ReadDir(parent); err != nil || len(entries) != 0 {
				t.Errorf("the refused bundle left %v (%v)", entries, err)
			}
		})
	}
}

func TestABundleWithoutManifestIsEmpty(t *testing.T) {
	if _, err := Open(fstest.MapFS{"README": {Data: []byte("only me")}}); !errors.Is(err, ErrEmpty) {
		t.Errorf("opening gave %v, want %v", err, ErrEmpty)
	}
}
