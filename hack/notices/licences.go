package main

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

//go:embed texts
var texts embed.FS

// component is one row of the notices.
type component struct {
	Name      string
	Version   string
	Binaries  []string
	Copyright []string // lines, as found, in order
	Bodies    []body
}

// body is one licence or notice file. Texts decide what is shared; a text that
// nobody shares is printed whole, so that in a file with several licences each
// copyright line keeps its place.
type body struct {
	File  string // where it was found, relative to the module's root
	Text  string // without copyright lines
	Whole string
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|unlicense|patents)([-._][-\w.]*)?$`)
	sourceFile  = regexp.MustCompile(`(?i)\.(go|docs|json|tmpl|sh|py)$`)
	// A copyright line names a year, a sign or "The … Authors"; "copyright
	// notice, this list of" and "Copyright License." are parts of a text.
	copyrightLine = regexp.MustCompile(
		`^[\s*#/]*(?:(?i:portions )?Copyright|©|\([cC]\))(?:\s+\(c\)|\s+\(C\)|\s*©|.*\d{4}|\s+(?:The|the) .*(?:Authors|Contributors|authors)|:)`)
	placeholder = regexp.MustCompile(`^\s*Copyright [\[{](yyyy|year)[\]}]`)
	reserved    = regexp.MustCompile(`(?i)^\s*all rights reserved\.?\s*$`)
)

// read makes a component of a linked module. A module without a licence is an
// error: we may not ship it.
func read(m linked) (component, error) {
	c := component{Name: m.Path, Version: m.Version, Binaries: m.Binaries}
	root := os.DirFS(m.Root)
	for _, dir := range licenceDirs(m.Packages) {
		entries, err := fs.ReadDir(root, dir)
		if err != nil {
			continue // LICENSES/… of a package that has none
		}
		for _, entry := range entries {
			if entry.IsDir() || !licenceFile.MatchString(entry.Name()) || sourceFile.MatchString(entry.Name()) {
				continue
			}
			if err := c.add(root, path.Join(dir, entry.Name())); err != nil {
				return c, fmt.Errorf("%s: %w", m.Path, err)
			}
		}
	}
	if len(c.Bodies) == 0 {
		return c, fmt.Errorf("%s %s has no licence file; it may not be linked", m.Path, m.Version)
	}
	return c, nil
}

// licenceDirs are the folders to look into: those of the linked packages, all
// above them, and the same below LICENSES/, sorted, the root first.
func licenceDirs(packages []string) []string {
	var dirs []string
	for _, p := range packages {
		for dir := p; ; dir = path.Dir(dir) {
			dirs = append(dirs, dir)
			if dir == "." {
				break
			}
			dirs = append(dirs, path.Join("LICENSES", dir))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

func (c *component) add(root fs.FS, file string) error {
	content, err := fs.ReadFile(root, file)
	if err != nil {
		return err
	}
	copyright, text := split(string(content))
	for _, line := range copyright {
		c.Copyright = addNew(c.Copyright, line)
	}
	whole := strings.TrimSpace(strings.ReplaceAll(string(content), "\r\n", "\n"))
	if strings.HasPrefix(strings.ToUpper(path.Base(file)), "NOTICE") {
		text = whole // a NOTICE is passed on as it stands
	}
	if text != "" {
		c.Bodies = append(c.Bodies, body{File: file, Text: text, Whole: whole})
	}
	return nil
}

// split takes the copyright lines out of a licence text. Trailing space, runs of
// empty lines and the placeholder line of Apache's appendix are dropped.
func split(content string) (copyright []string, text string) {
	var kept []string
	for line := range strings.Lines(strings.ReplaceAll(content, "\r\n", "\n")) {
		line = strings.TrimRight(line, " \t\n\f")
		switch {
		case placeholder.MatchString(line), reserved.MatchString(line):
		case copyrightLine.MatchString(line):
			copyright = append(copyright, strings.Trim(line, " \t*#/"))
		case line == "" && (len(kept) == 0 || kept[len(kept)-1] == ""):
		default:
			kept = append(kept, line)
		}
	}
	return copyright, strings.TrimRight(strings.Join(kept, "\n"), "\n")
}

// outside are the components that no module graph knows: name, which binaries
// carry them, and their files in texts/. Their texts are printed whole.
func outside(goBinaries []string) ([]component, error) {
	rows := []struct {
		name     string
		binaries []string
		files    []string
	}{
		{"Go standard library and runtime", goBinaries, []string{"go.txt"}},
		{"libseccomp (LGPL-2.1)", []string{"runc"}, []string{"libseccomp.txt", "lgpl-2.1.txt"}},
		{"GNU C Library (LGPL-2.1-or-later and others)", []string{"runc"}, []string{"glibc.txt", "lgpl-2.1.txt"}},
	}
	var components []component
	for _, row := range rows {
		c := component{Name: row.name, Binaries: row.binaries}
		for _, file := range row.files {
			content, err := texts.ReadFile(path.Join("texts", file))
			if err != nil {
				return nil, err
			}
			text := strings.TrimSpace(string(content))
			c.Bodies = append(c.Bodies, body{File: file, Text: text, Whole: text})
		}
		components = append(components, c)
	}
	return components, nil
}
