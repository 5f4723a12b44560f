// Pack compresses the programs and images that mend carries into the folder that is
// embedded, and writes the manifest that the unpacking side checks.
//
//	go run ./internal/runtime/containerd/bundle/pack -from dist/payload -to DIR NAME...
//
// A file whose content is already packed is left alone, so a rebuild costs nothing.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"

	"github.com/klauspost/compress/zstd"

	"mend/internal/runtime/containerd/bundle"
)

func main() {
	from := flag.String("from", "", "`folder` with the files")
	to := flag.String("to", "", "`folder` to pack into")
	flag.Parse()
	if *from == "" || *to == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := pack(*from, *to, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(from, to string, names []string) error {
	sort.Strings(names)
	old := bundle.Manifest{}
	if b, err := os.ReadFile(filepath.Join(to, bundle.ManifestName)); err == nil {
		// A manifest of an older make is no error: everything is packed again.
		_ = json.Unmarshal(b, &old)
	}
	var m bundle.Manifest
	for _, name := range names {
		f, err := describe(filepath.Join(from, name))
		if err != nil {
			return err
		}
		m.Files = append(m.Files, f)
		packed := filepath.Join(to, name+bundle.Suffix)
		if _, err := os.Stat(packed); err == nil && old.Has(f) {
			continue
		}
		if err := compress(filepath.Join(from, name), packed); err != nil {
			return err
		}
	}
	if err := removeOthers(to, names); err != nil {
		return err
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return replace(filepath.Join(to, bundle.ManifestName), func(w io.Writer) error {
		_, err := w.Write(append(b, '\n'))
		return err
	})
}

// describe hashes a file.
func describe(path string) (bundle.File, error) {
	in, err := os.Open(path)
	if err != nil {
		return bundle.File{}, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return bundle.File{}, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return bundle.File{}, err
	}
	return bundle.File{
		Name:       filepath.Base(path),
		SHA256:     hex.EncodeToString(h.Sum(nil)),
		Size:       info.Size(),
		Executable: info.Mode()&0o111 != 0,
	}, nil
}

func compress(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return replace(to, func(w io.Writer) error {
		z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
		if err != nil {
			return err
		}
		if _, err := io.Copy(z, in); err != nil {
			return err
		}
		return z.Close()
	})
}

// replace writes a file aside and renames it, so that an interrupted make leaves no
// half of one to be embedded.
func replace(path string, write func(io.Writer) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".pack-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	err = write(tmp)
	if err == nil {
		err = tmp.Chmod(0o644)
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// removeOthers deletes what an earlier list of names left.
func removeOthers(dir string, names []string) error {
	keep := map[string]bool{"README": true, bundle.ManifestName: true}
	for _, n := range names {
		keep[n+bundle.Suffix] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !keep[e.Name()] && !e.IsDir() {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
