// Typecheck type-checks packages and their tests for another system and architecture,
// without compiling what they depend on: in seconds, where a build from an empty cache
// takes minutes.
//
//	go run ./hack/typecheck -os darwin -arch amd64 ./internal/store
//
// The packages of this module are checked whole, of all others only what they
// declare. Nothing is written.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// listed is what `go list` says of a package.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	ImportMap  map[string]string
	Module     *struct {
		Main      bool
		GoVersion string
	}
}

func main() {
	system := flag.String("os", "", "`GOOS` to check for")
	arch := flag.String("arch", "", "`GOARCH` to check for")
	flag.Parse()
	if *system == "" || *arch == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*system, *arch, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
}

func run(system, arch string, patterns []string) error {
	list := exec.Command("go", append([]string{"list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,Module"}, patterns...)...)
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return err
	}
	if err := list.Start(); err != nil {
		return err
	}
	checked, err := check(json.NewDecoder(out), types.SizesFor("gc", arch))
	if err := errors.Join(err, list.Wait()); err != nil {
		return err
	}
	fmt.Printf("%s/%s: %d packages of mend's and of their tests fit\n", system, arch, checked)
	return nil
}

// check takes the packages in the order of go list, which has each after what it
// imports. It returns how many of this module's were checked.
func check(list *json.Decoder, sizes types.Sizes) (int, error) {
	known, ours := map[string]*types.Package{"unsafe": types.Unsafe}, 0
	var faults []error
	for {
		var one listed
		if err := list.Decode(&one); errors.Is(err, io.EOF) {
			return ours, errors.Join(faults...)
		} else if err != nil {
			return ours, errors.Join(append(faults, err)...)
		}
		if one.ImportPath == "unsafe" || strings.HasSuffix(one.ImportPath, ".test") {
			continue // the latter is the main package of a test, written by go test
		}
		made, err := checkPackage(one, known, sizes)
		if err != nil {
			faults = append(faults, err)
		}
		if one.Module != nil && one.Module.Main {
			ours++
		}
		known[one.ImportPath] = made
	}
}

func checkPackage(one listed, known map[string]*types.Package, sizes types.Sizes) (*types.Package, error) {
	files := token.NewFileSet()
	var trees []*ast.File
	for _, name := range one.GoFiles {
		tree, err := parser.ParseFile(files, filepath.Join(one.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		trees = append(trees, tree)
	}
	var faults []error
	config := types.Config{
		Importer:         importer{known: known, names: one.ImportMap},
		Sizes:            sizes,
		IgnoreFuncBodies: one.Module == nil || !one.Module.Main,
		Error:            func(err error) { faults = append(faults, err) },
	}
	if one.Module != nil && one.Module.GoVersion != "" {
		config.GoVersion = "go" + one.Module.GoVersion
	}
	made, _ := config.Check(one.ImportPath, files, trees, nil) // its error is the first fault
	return made, errors.Join(faults...)
}

// importer finds what was checked before.
type importer struct {
	known map[string]*types.Package
	names map[string]string // as written → as listed: vendored, or built for a test
}

// Import implements [types.Importer].
func (i importer) Import(path string) (*types.Package, error) {
	if listed, ok := i.names[path]; ok {
		path = listed
	}
	if found := i.known[path]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("package %s was not listed", path)
}
