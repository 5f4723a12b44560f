package app

import (
	"fmt"
	"slices"
	"strings"

	"mend/internal/loop"
)

// checkOwners refuses a list in which two loops claim the same write, or a loop
// does not say what it reads. A claim on a resource ("pods") covers its fields
// and subresources ("pods:spec.nodeName", "pods/status").
func checkOwners(list []loop.Declaration) error {
	owners := map[string]string{}
	for _, declaration := range list {
		if declaration.Name == "" || len(declaration.Reads) == 0 || declaration.Build == nil {
			return fmt.Errorf("loop %q declares no name, no reads or no way to build it", declaration.Name)
		}
		for _, write := range declaration.Writes {
			for claimed, owner := range owners {
				if owner != declaration.Name && (covers(claimed, write) || covers(write, claimed)) {
					return fmt.Errorf("loops %s and %s both write %s", owner, declaration.Name, write)
				}
			}
			owners[write] = declaration.Name
		}
	}
	return nil
}

// covers says whether a claim on outer includes inner.
func covers(outer, inner string) bool {
	rest, found := strings.CutPrefix(inner, outer)
	return found && (rest == "" || strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, ":") || strings.HasPrefix(rest, "/"))
}

// graph prints the list as a table for docs/loops.md: who reads and writes what.
func graph(list []loop.Declaration) string {
	var out strings.Builder
	out.WriteString("| loop | reads | alone writes |\n|---|---|---|\n")
	for _, declaration := range list {
		fmt.Fprintf(&out, "| %s | %s | %s |\n", declaration.Name,
			strings.Join(slices.Sorted(slices.Values(declaration.Reads)), ", "),
			strings.Join(slices.Sorted(slices.Values(declaration.Writes)), ", "))
	}
	return out.String()
}
