package loadbalancer

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"mend/internal/loop"
)

// apply carries the plan out. A note is given when something was written, and one about a
// refusal once for each reason.
func (c *controller) apply(ctx context.Context, key string, o Observed, p Plan) error {
	if p.Status != nil {
		next := o.Service.DeepCopy()
		next.Status = *p.Status
		made, err := c.client.CoreV1().Services(next.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case apierrors.IsConflict(err):
			return loop.ErrStale
		case err != nil:
			return fmt.Errorf("write the status of Service %s: %w", key, err)
		}
		c.writes.Wrote(key, "services", made)
	}
	if c.said.isNews(key, p.Note) && (p.Status != nil || p.Note != Note{}) {
		c.events.Event(o.Service, p.Note.Type, p.Note.Reason, p.Note.Message)
	}
	return nil
}
