package loop

import (
	"context"

	"k8s.io/client-go/util/workqueue"
)

// Drive puts a loop into other hands than its own workers': the simulator's,
// where nothing may depend on how goroutines are scheduled. Keys go into the
// queue that Queue returns for the loop of that name, and [Loop.Step] takes them
// from there. A nil Drive is a loop that drives itself.
type Drive struct {
	Queue func(loop string) workqueue.TypedRateLimitingInterface[string]
}

// AtOnce is how many requests a loop may have in flight where it would like to
// have n: driven ones go out one after another, in the order of their plan.
func (d *Drive) AtOnce(n int) int {
	if d != nil {
		return 1
	}
	return n
}

// Step works on the next key in the caller's goroutine, as a worker would. It
// blocks while the queue is empty; a driven queue that reports its shutdown
// instead makes Step return false.
func (l *Loop) Step(ctx context.Context) bool { return l.next(ctx) }
