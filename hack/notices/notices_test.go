package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplitTakesOnlyCopyrightLinesOut(t *testing.T) {
	for name, tc := range map[string]struct {
		content   string
		copyright []string
		text      string
	}{
		"MIT": {
			"MIT License\n\nCopyright (c) 2014 A. Person\n\nPermission is hereby granted\n",
			[]string{"Copyright (c) 2014 A. Person"},
			"MIT License\n\nPermission is hereby granted",
		},
		"a condition that begins with the word stays": {
			"Copyright 2009 The Go Authors.\nAll rights reserved.\n\n   copyright notice, this list of conditions\nCopyright License. Subject to\nCOPYRIGHT HOLDERS BE LIABLE",
			[]string{"Copyright 2009 The Go Authors."},
			"   copyright notice, this list of conditions\nCopyright License. Subject to\nCOPYRIGHT HOLDERS BE LIABLE",
		},
		"Apache's placeholder goes, a filled one is listed": {
			"   Copyright [yyyy] [name of copyright owner]\n   Copyright 2018 CoreOS, Inc\n   Licensed under",
			[]string{"Copyright 2018 CoreOS, Inc"},
			"   Licensed under",
		},
		"holders without a year, and comments": {
			"# Copyright The containerd Authors.\n * Copyright: 2001 B\n\r\nText\r\n",
			[]string{"Copyright The containerd Authors.", "Copyright: 2001 B"},
			"Text",
		},
	} {
		t.Run(name, func(t *testing.T) {
			copyright, text := split(tc.content)
			if diff := cmp.Diff(tc.copyright, copyright); diff != "" {
				t.Errorf("copyright lines (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.text, text); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLicenceDirsAreThoseOfLinkedPackagesAndAllAbove(t *testing.T) {
	got := licenceDirs([]string{"a/b", "c"})
	want := []string{".", "LICENSES/a", "LICENSES/a/b", "LICENSES/c", "a", "a/b", "c"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestModuleWithoutLicenceIsRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "license.go"), "package license // not a licence")
	_, err := read(linked{Path: "example.org/x", Version: "v1.0.0", Root: dir, Packages: []string{"."}})
	if err == nil || !strings.Contains(err.Error(), "example.org/x v1.0.0 has no licence file") {
		t.Errorf("got error %v", err)
	}
}

func TestForkedCodesOwnLicenceIsListedOnlyWhereItIsLinked(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "LICENSE"), "Outer text")
	write(t, filepath.Join(dir, "third_party/used/LICENSE.txt"), "Copyright 2001 Fork\nInner text")
	write(t, filepath.Join(dir, "third_party/unused/LICENSE"), "Other text")
	c, err := read(linked{Path: "example.org/x", Root: dir, Packages: []string{"third_party/used"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []body{
		{"LICENSE", "Outer text", "Outer text"},
		{"third_party/used/LICENSE.txt", "Inner text", "Copyright 2001 Fork\nInner text"},
	}
	if diff := cmp.Diff(want, c.Bodies); diff != "" {
		t.Errorf("texts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Copyright 2001 Fork"}, c.Copyright); diff != "" {
		t.Errorf("copyright lines (-want +got):\n%s", diff)
	}
}

func TestSharedTextsArePrintedOnceAndOthersWhole(t *testing.T) {
	got := render([]component{
		{Name: "a", Version: "v1", Binaries: []string{"x"}, Copyright: []string{"Copyright 2001 A"}, Bodies: []body{{"LICENSE", "Same  text.", "Copyright 2001 A\nSame  text."}}},
		{Name: "b", Version: "v2", Binaries: []string{"x", "y"}, Bodies: []body{{"COPYING", "same\ntext", "same\ntext"}, {"NOTICE", "more", "Copyright 2002 B\nmore"}}},
	})
	if n := strings.Count(strings.ToLower(got), "same"); n != 1 {
		t.Errorf("the shared text is printed %d times:\n%s", n, got)
	}
	for _, want := range []string{
		"\na v1\n    in: x\n    Copyright 2001 A\n    texts: [1] LICENSE\n",
		"\nb v2\n    in: x, y\n    texts: [1] COPYING, [2] NOTICE\n",
		"\n[1]\n\nSame  text.\n",
		"\n[2]\n\nCopyright 2002 B\nmore\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in:\n%s", want, got)
		}
	}
}

// A package of ours stands for a binary: what it links must be found with its
// licence, and what only tests or other packages need must not.
func TestGenerateListsWhatAPackageLinks(t *testing.T) {
	if testing.Short() {
		t.Skip("asks the go command")
	}
	got, err := generate("../..", []binary{{Name: "loop", Dir: ".", Package: "./internal/loop"}})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(got, "\n")
	has := func(prefix string) bool {
		return slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, prefix) })
	}
	for _, want := range []string{"k8s.io/client-go v", "sigs.k8s.io/yaml v", "Go standard library", "libseccomp (LGPL-2.1)"} {
		if !has(want) {
			t.Errorf("%s is not listed", want)
		}
	}
	for _, no := range []string{"go.etcd.io/etcd/server/v3 v", "pgregory.net/rapid v", "mend"} {
		if has(no + " ") {
			t.Errorf("%s is listed", no)
		}
	}
	if !strings.Contains(got, "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION") {
		t.Error("Apache's text is missing")
	}
}

func TestBuildTagsAreTheMakefiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "m/Makefile"), "RUNC_TAGS := seccomp\nTAGS      := no_zfs  netgo\n")
	got, err := buildTags(dir, binary{Dir: "m", Tags: "TAGS"})
	if err != nil || got != "no_zfs,netgo" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := buildTags(dir, binary{Dir: "m", Tags: "OTHER"}); err == nil || !strings.Contains(err.Error(), "Makefile does not set OTHER") {
		t.Errorf("a variable that is not there: got error %v", err)
	}
	if got, err := buildTags(dir, binary{Dir: "none"}); err != nil || got != "" {
		t.Errorf("no tags: got %q, %v", got, err)
	}
}

// The real Makefile must keep the form that buildTags reads.
func TestEveryShippedBinaryHasItsTags(t *testing.T) {
	for _, b := range shipped {
		if tags, err := buildTags("../..", b); err != nil || (b.Tags != "" && tags == "") {
			t.Errorf("%s: tags %q, %v", b.Name, tags, err)
		}
	}
}

func TestCheckNamesTheFirstDifference(t *testing.T) {
	for name, tc := range map[string]struct{ old, now, want string }{
		"changed": {"a\nb", "a\nc", `line 2 is "b", should be "c"`},
		"missing": {"a", "a\nb", `line 2 is missing: "b"`},
		"surplus": {"a\nb", "a", `line 2 should not be there: "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := firstDifference(tc.old, tc.now); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
