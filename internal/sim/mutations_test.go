package sim

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutation is a bug put into a loop's source. inSmoke ones belong to make test;
// all run in make sim, since each costs a build.
type mutation struct {
	name, file string
	old, new   string
	inSmoke    bool
}

var mutations = []mutation{
	{"the ceiling is one too high", "controller/deployment/scale.go",
		"return r.want + r.limits.surge }", "return r.want + r.limits.surge + 1 }", true},
	{"the floor is one too low", "controller/deployment/scale.go",
		"return r.want - r.limits.unavailable }", "return r.want - r.limits.unavailable - 1 }", false},
	{"what the new ReplicaSet owes is forgotten", "controller/deployment/rollout.go",
		"spare := total - r.floor() - owed", "spare := total - r.floor()", false},
	{"an acknowledged size is waited for, not an unacknowledged one", "controller/deployment/rollout.go",
		"return rs.Generation > rs.Status.ObservedGeneration", "return rs.Generation < rs.Status.ObservedGeneration", false},
	{"a new revision is not above the others", "controller/deployment/revision.go",
		"strconv.FormatInt(highest+1, 10)", "strconv.FormatInt(highest, 10)", false},
	{"available is taken to be as many as asked for", "controller/deployment/plan.go",
		"return min(f.replicas, sizeOf(f.rs), f.rs.Status.AvailableReplicas)", "return min(f.replicas, sizeOf(f.rs))", false},
	{"a Deployment adopts without looking whether it is still there", "controller/deployment/apply.go",
		"if slices.ContainsFunc(p.Actions, isAdopt) {", "if false {", false},

	{"one Pod more than is missing is created", "controller/replicaset/plan.go",
		"Count: min(want-have, burst)", "Count: min(want-have+1, burst)", false},
	{"more Pods are never deleted, fewer are", "controller/replicaset/plan.go",
		"case have > want:", "case have > want+1:", false},
	{"the view need not have reached the last write", "controller/replicaset/controller.go",
		"if !c.writes.CaughtUp(key) {", "if false {", true},
	{"a Pod is deleted whoever it is by now", "controller/replicaset/apply.go",
		"Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: ptr.To(pod.ResourceVersion)},", "GracePeriodSeconds: ptr.To[int64](30),", false},
	{"ready Pods go first", "controller/replicaset/rank.go",
		"falseFirst(a.ready, b.ready)", "falseFirst(b.ready, a.ready)", false},
	{"a Pod that is not yet available is kept before one that is", "controller/replicaset/rank.go",
		"falseFirst(a.available, b.available)", "falseFirst(b.available, a.available)", false},
	{"adopting what is gone ends the sync", "controller/replicaset/apply.go",
		"case apierrors.IsNotFound(err), apierrors.IsConflict(err):\n\t\treturn loop.ErrStale // one", "case apierrors.IsNotFound(err):\n\t\treturn nil\n\tcase apierrors.IsConflict(err):\n\t\treturn loop.ErrStale // one", false},

	{"a Pod about to be bound is not counted", "scheduler/scheduler.go",
		"s.cluster.assume(pod.UID, d, plan.Bind.Node)", "", false},
	{"one Pod too many fits", "scheduler/filter.go",
		"amount <= have-used", "amount/2 <= have-used", false},
	{"a refused binding is sent again for ever", "scheduler/apply.go",
		"case live.Spec.NodeName == \"\":\n\t\ts.forget(pod)", "case live.Spec.NodeName == \"\":", false},
	{"nobody is tried on a new node", "scheduler/observe.go",
		"\ts.tryOn(node.Name)\n\ts.refreshMessages()", "", true},

	{"one owner that lives is not enough", "controller/garbage/plan.go",
		"case len(keepers) > 0:", "case len(keepers) > 1:", true},
	{"an owner found is taken for another", "controller/garbage/observe.go",
		"err == nil && owner.UID != ref.UID:\n\t\to.absent", "err == nil && owner.UID == ref.UID:\n\t\to.absent", false},
	{"orphans are not let go of", "controller/garbage/plan.go",
		"for _, dep := range o.Dependents {\n\t\tp.Actions = append(p.Actions, DropOwners{", "for _, dep := range o.Dependents[:0] {\n\t\tp.Actions = append(p.Actions, DropOwners{", false},
	{"a foreground deletion waits for those that do not block it", "controller/garbage/plan.go",
		"if !dep.Blocking {", "if dep.Blocking {", false},
	{"the end of an owner wakes no dependent", "controller/garbage/graph.go",
		"w := wakes{now: g.dependentUIDs(uid)}", "w := wakes{}", false},

	{"Pods of nodes that are there are ended", "controller/podgc/observe.go",
		"return pod.Spec.NodeName != node", "return pod.Spec.NodeName == node", false},
	{"a node that is gone is taken to be there", "controller/podgc/observe.go",
		"o.State = NodeGone", "o.State = NodeThere", false},
}

// TestMutations puts each bug in, by an overlay over the source, and expects the
// simulator to fail on it. SIM_MUTATIONS=all runs those that make test leaves out;
// a part of a name runs the ones that have it.
func TestMutations(t *testing.T) {
	which := os.Getenv("SIM_MUTATIONS")
	if which == "" && (testing.Short() || raced && os.Getenv("CI") == "" && os.Getenv("MEND_E2E") == "") {
		which = "smoke"
	}
	for _, m := range mutations {
		if which == "all" || which != "" && strings.Contains(m.name, which) || m.inSmoke && (which == "" || which == "smoke") {
			t.Run(m.name, func(t *testing.T) { m.isCaught(t) })
		}
	}
}

func (m mutation) isCaught(t *testing.T) {
	path, err := filepath.Abs(filepath.Join("..", m.file))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("%s has %d places that read %q, want 1: adapt the mutation", m.file, n, m.old)
	}
	dir := t.TempDir()
	mutated, overlay, binary := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, mutated, strings.Replace(string(source), m.old, m.new, 1))
	write(t, overlay, string(replace))
	// Without the race detector, and linked without debug information: it is the
	// build that costs.
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-trimpath", "-ldflags=-s -w", "-vet=off", "-overlay", overlay, "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the mutated loop does not build: %v\n%s", err, out)
	}
	run := exec.CommandContext(t.Context(), binary, "-test.run=^TestSeeds$")
	run.Env = append(os.Environ(), "SIM_BRIEF=1", "SIM_SEED=", "SIM_FROM=1", "SIM_SEEDS=2000")
	out, err := run.CombinedOutput()
	first, _, _ := strings.Cut(string(out), "\n        replay:")
	switch {
	case err == nil:
		t.Errorf("2,000 seeds do not notice")
	case !strings.Contains(first, "seed "):
		t.Errorf("the run failed otherwise: %v\n%s", err, out)
	default:
		t.Log(strings.TrimSpace(first[strings.Index(first, "seed "):]))
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
