package rollout

import (
	"fmt"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"k8s.io/utils/ptr"
)

var deploymentKind = apps.SchemeGroupVersion.WithKind("Deployment").GroupKind()

// rolloutStatus is one line of kubectl rollout status, and whether it is the last.
func (w *world) rolloutStatus() (string, bool, error) {
	w.Helper()
	viewer, err := polymorphichelpers.StatusViewerFor(deploymentKind)
	w.must(err)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w.deployment())
	w.must(err)
	return viewer.Status(&unstructured.Unstructured{Object: content}, 0)
}

// history is what kubectl rollout history prints, spaces apart.
func (w *world) history() string {
	w.Helper()
	viewer, err := polymorphichelpers.HistoryViewerFor(deploymentKind, w.client)
	w.must(err)
	text, err := viewer.ViewHistory(w.namespace, "web", 0)
	w.must(err)
	var lines []string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			lines = append(lines, strings.Join(fields, " "))
		}
	}
	return strings.Join(lines, "; ")
}

func (w *world) undo(revision int64) (string, error) {
	w.Helper()
	back, err := polymorphichelpers.RollbackerFor(deploymentKind, w.client)
	w.must(err)
	return back.Rollback(w.deployment(), nil, revision, util.DryRunNone)
}

// finished waits for the end of kubectl rollout status and returns its lines.
func (w *world) finished() []string {
	w.Helper()
	var lines []string
	w.eventually("kubectl rollout status", func() error {
		line, done, err := w.rolloutStatus()
		w.must(err)
		if len(lines) == 0 || lines[len(lines)-1] != line {
			lines = append(lines, line)
		}
		if !done {
			return fmt.Errorf("%s", line)
		}
		return nil
	})
	return lines
}

// kubectl's own code reads and writes what the loop writes and reads: revisions,
// conditions, counts.
func TestKubectlRollout(t *testing.T) {
	c := newCluster(t)
	t.Cleanup(c.startLoops(t))
	w := c.newWorld(t)
	w.web(3, "web:1", func(d *apps.Deployment) { d.Annotations = map[string]string{"kubernetes.io/change-cause": "first"} })
	w.finished()
	w.edit(setImage("web:2"))
	lines := w.finished()
	if last := lines[len(lines)-1]; last != "deployment \"web\" successfully rolled out\n" {
		t.Errorf("rollout status ended with %q", last)
	}
	if got, want := w.history(), "REVISION CHANGE-CAUSE; 1 first; 2 <none>"; got != want {
		t.Errorf("history %q, want %q", got, want)
	}

	said, err := w.undo(0)
	w.must(err)
	w.finished()
	if got, want := w.history(), "REVISION CHANGE-CAUSE; 2 <none>; 3 first"; said != "rolled back" || got != want {
		t.Errorf("undo said %q, history %q, want %q", said, got, want)
	}
	if _, err := w.undo(1); err == nil || !strings.Contains(err.Error(), "unable to find specified revision 1 in history") {
		t.Errorf("undo to a revision that was renumbered: %v", err)
	}
	said, err = w.undo(2)
	w.must(err)
	w.finished()
	if got, want := w.history(), "REVISION CHANGE-CAUSE; 3 first; 4 <none>"; said != "rolled back" || got != want {
		t.Errorf("undo said %q, history %q, want %q", said, got, want)
	}
	if got := w.deployment(); got.Spec.Template.Spec.Containers[0].Image != "web:2" || got.Annotations["kubernetes.io/change-cause"] != "" || got.Annotations["mend.local/inherited-change-cause"] != "" {
		t.Errorf("image %s, annotations %v", got.Spec.Template.Spec.Containers[0].Image, got.Annotations)
	}
}

// A verdict on one rollout never ends the status of the next, whichever way that
// one begins.
func TestKubectlRolloutStatusAfterADeadline(t *testing.T) {
	c := newCluster(t)
	t.Cleanup(c.startLoops(t))
	for name, strategy := range map[string]apps.DeploymentStrategyType{
		"rolling": apps.RollingUpdateDeploymentStrategyType, "recreate": apps.RecreateDeploymentStrategyType,
	} {
		t.Run(name, func(t *testing.T) {
			w := c.newWorld(t)
			w.web(3, "web:1", func(d *apps.Deployment) {
				d.Spec.Strategy.Type = strategy
				d.Spec.ProgressDeadlineSeconds = ptr.To[int32](1)
			})
			w.finished()
			for _, next := range []func(){
				func() { w.edit(setImage("web:2")) },
				func() { _, err := w.undo(0); w.must(err) },
			} {
				w.edit(setImage("web:bad"))
				w.eventually("the deadline", func() error {
					if _, _, err := w.rolloutStatus(); err == nil || !strings.Contains(err.Error(), "exceeded its progress deadline") {
						return fmt.Errorf("status error %w", err)
					}
					return nil
				})
				next()
				w.finished()
				w.edit(setImage("web:1"))
				w.finished()
			}
		})
	}
}
