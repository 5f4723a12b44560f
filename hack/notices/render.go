package main

import (
	"fmt"
	"strings"
)

const preamble = `THIRD-PARTY NOTICES

mend's binaries carry the components below. Each row gives the component, its
version, the binaries that link it, its copyright lines as its authors wrote
them, and the numbers of the texts under which it is licensed. A text that
several share is printed once, without copyright lines.

Written by hack/notices from what the binaries really link; do not edit. Make it
anew with "make generate".
`

// render lays the components out: a list, then every different text once, in
// the order of first use.
func render(components []component) string {
	var list, appendix strings.Builder
	numbers, uses := map[string]int{}, countUses(components)
	for _, c := range components {
		fmt.Fprintf(&list, "\n%s\n", strings.TrimSpace(c.Name+" "+c.Version))
		fmt.Fprintf(&list, "    in: %s\n", strings.Join(c.Binaries, ", "))
		for _, line := range c.Copyright {
			fmt.Fprintf(&list, "    %s\n", line)
		}
		var refs []string
		for _, b := range c.Bodies {
			key := normal(b.Text)
			if numbers[key] == 0 {
				numbers[key] = len(numbers) + 1
				text := b.Whole
				if uses[key] > 1 {
					text = b.Text
				}
				fmt.Fprintf(&appendix, "\n%s\n[%d]\n\n%s\n", strings.Repeat("-", 80), numbers[key], text)
			}
			refs = addNew(refs, fmt.Sprintf("[%d] %s", numbers[key], b.File))
		}
		fmt.Fprintf(&list, "    texts: %s\n", strings.Join(refs, ", "))
	}
	return preamble + heading("COMPONENTS") + list.String() + heading("TEXTS") + appendix.String()
}

func countUses(components []component) map[string]int {
	uses := map[string]int{}
	for _, c := range components {
		for _, b := range c.Bodies {
			uses[normal(b.Text)]++
		}
	}
	return uses
}

func heading(title string) string {
	bar := strings.Repeat("=", 80)
	return "\n" + bar + "\n" + title + "\n" + bar + "\n"
}

// normal is the form in which two texts count as the same: letters and digits
// only, in lower case.
func normal(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, text)
}
