package agent

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Pods deleted without grace were each written to twice after they were gone.
func TestOnlyAPodDeletedWithoutGraceIsGoing(t *testing.T) {
	now := metav1.Now()
	for name, tt := range map[string]struct {
		meta metav1.ObjectMeta
		want bool
	}{
		"one that stays":               {metav1.ObjectMeta{}, false},
		"one deleted with grace":       {metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: ptr.To[int64](30)}, false},
		"one deleted without":          {metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: ptr.To[int64](0)}, true},
		"one deleted, nobody says how": {metav1.ObjectMeta{DeletionTimestamp: &now}, false},
	} {
		if got := isGoing(&v1.Pod{ObjectMeta: tt.meta}); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
