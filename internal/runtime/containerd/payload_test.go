package containerd

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// unpacked gives the payload's folder, or skips where mend was built without.
func unpacked(t *testing.T) string {
	t.Helper()
	b, err := Bundle()
	if errors.Is(err, ErrEmpty) {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := b.Unpack(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// A program that needs the machine's C library runs on one distribution and not on the
// next.
func TestEveryProgramIsStatic(t *testing.T) {
	dir := unpacked(t)
	ldd, lddErr := exec.LookPath("ldd")
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc", "mend-cni", "mend-dns"} {
		path := filepath.Join(dir, name)
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s asks for a dynamic loader", name)
			}
		}
		if libraries, err := f.ImportedLibraries(); err == nil && len(libraries) > 0 {
			t.Errorf("%s needs %v", name, libraries)
		}
		f.Close()
		if lddErr == nil {
			out, err := exec.Command(ldd, path).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "not a dynamic executable") {
				t.Errorf("ldd %s: %s (%v)", name, out, err)
			}
		}
	}
}

func TestEveryProgramSaysItsVersion(t *testing.T) {
	dir := unpacked(t)
	for name, tc := range map[string]struct{ flag, want string }{
		"containerd":              {"--version", "v2.4."},
		"containerd-shim-runc-v2": {"-v", "v2.4."},
		"runc":                    {"--version", "runc version 1.5."},
	} {
		out, err := exec.Command(filepath.Join(dir, name), tc.flag).CombinedOutput()
		if err != nil || !strings.Contains(string(out), tc.want) {
			t.Errorf("%s %s: %s (%v), want %q in it", name, tc.flag, out, err, tc.want)
		}
	}
}
