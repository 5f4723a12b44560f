package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const output = "THIRD_PARTY_NOTICES"

// shipped are the programs in a release. Build tags decide what is linked, so
// they are taken from where the programs are built.
var shipped = []binary{
	{Name: "mend", Dir: ".", Package: "./cmd/mend"},
	{Name: "mend-cni", Dir: ".", Package: "./cmd/mend-cni"},
	{Name: "mend-dns", Dir: ".", Package: "./cmd/mend-dns"},
	{Name: "sample web image", Dir: ".", Package: "./images/web"},
	{Name: "containerd", Dir: "runtime", Package: "github.com/containerd/containerd/v2/cmd/containerd", Tags: "TAGS"},
	{Name: "containerd-shim-runc-v2", Dir: "runtime", Package: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", Tags: "TAGS"},
	{Name: "runc", Dir: "runtime", Package: "github.com/opencontainers/runc", Tags: "RUNC_TAGS", Cgo: true},
}

func main() {
	check := flag.Bool("check", false, "fail when "+output+" is not what would be written")
	flag.Parse()
	if err := run(".", *check); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	content, err := generate(root, shipped)
	if err != nil {
		return err
	}
	file := filepath.Join(root, output)
	if !check {
		return os.WriteFile(file, []byte(content), 0o644)
	}
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if string(old) != content {
		return fmt.Errorf("%s is out of date (%s); run make generate", output, firstDifference(string(old), content))
	}
	return nil
}

func generate(root string, binaries []binary) (string, error) {
	modules, err := collect(root, binaries)
	if err != nil {
		return "", err
	}
	var names []string
	for _, b := range binaries {
		names = append(names, b.Name)
	}
	components, err := outside(names)
	if err != nil {
		return "", err
	}
	for _, m := range modules {
		c, err := read(m)
		if err != nil {
			return "", err
		}
		components = append(components, c)
	}
	return render(components), nil
}

// firstDifference names the first line in which two texts differ.
func firstDifference(old, wanted string) string {
	was, now := strings.Split(old, "\n"), strings.Split(wanted, "\n")
	for i := range was {
		if i >= len(now) {
			return fmt.Sprintf("line %d should not be there: %q", i+1, was[i])
		}
		if was[i] != now[i] {
			return fmt.Sprintf("line %d is %q, should be %q", i+1, was[i], now[i])
		}
	}
	return fmt.Sprintf("line %d is missing: %q", len(was)+1, now[len(was)])
}
