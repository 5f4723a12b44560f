package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// binary is one program that we ship, and how it is built.
type binary struct {
	Name    string
	Dir     string // of its module, relative to the repository's root
	Package string
	Tags    string // the variable in Dir's Makefile that holds its build tags; "" for none
	Cgo     bool
}

// arches are the processors that binaries are built for; what any of them links
// is listed.
var arches = []string{"amd64", "arm64"}

// listed is what we ask go list for, one JSON object per package.
type listed struct {
	ImportPath string
	Dir        string
	Standard   bool
	Module     *struct {
		Path    string
		Version string
		Dir     string
		Main    bool
		Replace *struct{ Path, Version string }
	}
}

// linked is one module that at least one binary links.
type linked struct {
	Path     string
	Version  string
	Root     string   // its folder on this machine
	Packages []string // folders of linked packages, relative to Root, "." for the root
	Binaries []string
}

// collect returns the modules that the binaries link, sorted by path and
// version. Our own modules and the standard library are left out. The same
// module may be there twice, in two versions, since runtime/ resolves its own.
func collect(root string, binaries []binary) ([]linked, error) {
	found := map[string]*linked{}
	for _, b := range binaries {
		for _, arch := range arches {
			packages, err := list(root, b, arch)
			if err != nil {
				return nil, fmt.Errorf("%s for %s: %w", b.Name, arch, err)
			}
			if err := gather(found, b.Name, packages); err != nil {
				return nil, err
			}
		}
	}
	modules := make([]linked, 0, len(found))
	for _, m := range found {
		slices.Sort(m.Packages)
		modules = append(modules, *m)
	}
	slices.SortFunc(modules, func(a, b linked) int {
		return strings.Compare(a.Path+"@"+a.Version, b.Path+"@"+b.Version)
	})
	return modules, nil
}

// list runs go list for one binary.
func list(root string, b binary, arch string) ([]listed, error) {
	cgo := "0"
	if b.Cgo {
		cgo = "1"
	}
	tags, err := buildTags(root, b)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-deps", "-tags="+tags, "-json=ImportPath,Dir,Standard,Module", b.Package)
	cmd.Dir = filepath.Join(root, b.Dir)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED="+cgo, "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return decode(out)
}

// buildTags reads the assignment of b's tags in its Makefile, as go list wants it.
func buildTags(root string, b binary) (string, error) {
	if b.Tags == "" {
		return "", nil
	}
	file := filepath.Join(root, b.Dir, "Makefile")
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(content)) {
		name, value, ok := strings.Cut(line, ":=")
		if ok && strings.TrimSpace(name) == b.Tags {
			return strings.Join(strings.Fields(value), ","), nil
		}
	}
	return "", fmt.Errorf("%s does not set %s", file, b.Tags)
}

func decode(out []byte) ([]listed, error) {
	var packages []listed
	stream := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		switch err := stream.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages, nil
		case err != nil:
			return nil, fmt.Errorf("go list's output: %w", err)
		}
		packages = append(packages, p)
	}
}

// gather adds what one binary links to found, keyed by module and version.
func gather(found map[string]*linked, binaryName string, packages []listed) error {
	for _, p := range packages {
		if p.Standard || p.Module == nil || p.Module.Main {
			continue
		}
		version := p.Module.Version
		if p.Module.Replace != nil {
			version = p.Module.Replace.Version
		}
		rel, err := filepath.Rel(p.Module.Dir, p.Dir)
		if err != nil {
			return fmt.Errorf("package %s: %w", p.ImportPath, err)
		}
		key := p.Module.Path + "@" + version
		m := found[key]
		if m == nil {
			m = &linked{Path: p.Module.Path, Version: version, Root: p.Module.Dir}
			found[key] = m
		}
		m.Packages = addNew(m.Packages, path.Clean(filepath.ToSlash(rel)))
		m.Binaries = addNew(m.Binaries, binaryName)
	}
	return nil
}

func addNew(list []string, item string) []string {
	if slices.Contains(list, item) {
		return list
	}
	return append(list, item)
}
