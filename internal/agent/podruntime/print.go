package podruntime

import (
	"fmt"
	"slices"
	"strings"
)

func sandboxPrint(id string, ready bool) string { return fmt.Sprintf("s/%s/%t", id, ready) }

func containerPrint(id string, phase Phase) string { return fmt.Sprintf("c/%s/%s", id, phase) }

func joinPrints(prints map[string]bool) string {
	sorted := make([]string, 0, len(prints))
	for p := range prints {
		sorted = append(sorted, p)
	}
	slices.Sort(sorted)
	return strings.Join(sorted, ",")
}
