package sim

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// mutation is a bug put into a loop's source: the text old becomes new, in which
// MUTATED stands for the condition that this bug is switched on.
type mutation struct{ name, file, old, new string }

// rare are bugs that only one in some dozens of seeds meets, or fewer, and a seed shortly
// before one that does: the search begins there. When the world changes it may take
// longer, not fail.
var rare = map[string]int{
	"revisions begin anew when no ReplicaSet is left":                        351,
	"revisions go back when the newest ReplicaSet is gone":                   661,
	"a Deployment adopts without looking whether it is still there":          1164,
	"a Pod is deleted whoever it is by now":                                  170,
	"ready Pods go first":                                                    408,
	"Pods that are available go before those that are not yet":               3870,
	"adopting what is gone ends the sync":                                    1505,
	"nobody is tried on a new node":                                          98,
	"a node's silence is not confirmed":                                      527,
	"an empty namespace is let go of at once":                                421,
	"the finalizers of others are taken off a namespace":                     661,
	"a namespace goes although not all kinds are known":                      1044,
	"a kind that cannot be listed is taken to be empty":                      363,
	"what Pods need goes with them":                                          775,
	"Pods are killed with their namespace":                                   775,
	"a ServiceAccount that was made is taken to be in view":                  1890,
	"certificates that were made are taken to be in view":                    1399,
	"the view need not have reached the last written slice":                  93,
	"the end of a Pod wakes no Service":                                      227,
	"Endpoints that were deleted before they showed are not missed":          274,
	"Endpoints that others changed stay":                                     1010,
	"Endpoints whose Service ended before the start are not noticed":         185,
	"a change of a node's use is not noticed":                                385,
	"where endpoints are wakes no Service":                                   156,
	"the view need not have reached the last mirrored slice":                 145,
	"mirrored slices that were deleted before they showed are not missed":    830,
	"mirrored slices that others changed stay":                               70,
	"an address that is no Service's any more frees no range":                223,
	"a new range frees none":                                                 163,
	"an IPAddress goes before its Service may have come":                     139,
	"a Service that the view does not show is taken to be gone":              337,
	"what the view does not show yet is taken to be settled":                 63,
	"a Service whose address is said to be another's is not looked at again": 1491,
}

var mutations = []mutation{
	{"the ceiling is one too high", "controller/deployment/scale.go",
		"{ return r.want + r.limits.surge }", "{ if MUTATED { return r.want + r.limits.surge + 1 }; return r.want + r.limits.surge }"},
	{"the floor is one too low", "controller/deployment/scale.go",
		"{ return r.want - r.limits.unavailable }", "{ if MUTATED { return r.want - r.limits.unavailable - 1 }; return r.want - r.limits.unavailable }"},
	{"what the new ReplicaSet owes is forgotten", "controller/deployment/rollout.go",
		"spare := total - r.floor() - owed", "if MUTATED { owed = 0 }; spare := total - r.floor() - owed"},
	{"an acknowledged size is waited for, not an unacknowledged one", "controller/deployment/rollout.go",
		"{ return rs.Generation > rs.Status.ObservedGeneration }", "{ return (rs.Generation > rs.Status.ObservedGeneration) != MUTATED }"},
	{"a new revision is not above the others", "controller/deployment/revision.go",
		"r.current.annotate(revisionAnnotation, strconv.FormatInt(highest+1, 10))",
		"if MUTATED { highest-- }; r.current.annotate(revisionAnnotation, strconv.FormatInt(highest+1, 10))"},
	{"revisions begin anew when no ReplicaSet is left", "controller/deployment/revision.go",
		"recorded > had {", "recorded > had && !(MUTATED && had == 0) {"},
	{"revisions go back when the newest ReplicaSet is gone", "controller/deployment/revision.go",
		"recorded := r.recordedRevision();", "recorded := r.recordedRevision(); !(MUTATED && had > 0) &&"},
	{"available is taken to be as many as asked for", "controller/deployment/plan.go",
		"return min(f.replicas, sizeOf(f.rs), f.rs.Status.AvailableReplicas)",
		"if MUTATED { return min(f.replicas, sizeOf(f.rs)) }; return min(f.replicas, sizeOf(f.rs), f.rs.Status.AvailableReplicas)"},
	{"a Deployment adopts without looking whether it is still there", "controller/deployment/apply.go",
		"if slices.ContainsFunc(p.Actions, isAdopt) {", "if !MUTATED && slices.ContainsFunc(p.Actions, isAdopt) {"},

	{"one Pod more than is missing is created", "controller/replicaset/plan.go",
		"case have < want:\n", "case have < want:\n if MUTATED { want++ }\n"},
	{"one Pod too many is not deleted", "controller/replicaset/plan.go",
		"case have > want:", "case have > want && !(MUTATED && have == want+1):"},
	{"the view need not have reached the last write", "controller/replicaset/controller.go",
		"if !c.writes.CaughtUp(key) {", "if !MUTATED && !c.writes.CaughtUp(key) {"},
	{"a Pod is deleted whoever it is by now", "controller/replicaset/apply.go",
		"&metav1.Preconditions{UID: &pod.UID, ResourceVersion: ptr.To(pod.ResourceVersion)},",
		"map[bool]*metav1.Preconditions{false: {UID: &pod.UID, ResourceVersion: ptr.To(pod.ResourceVersion)}}[MUTATED],"},
	{"ready Pods go first", "controller/replicaset/rank.go",
		"falseFirst(a.ready, b.ready)", "falseFirst(a.ready != MUTATED, b.ready != MUTATED)"},
	{"Pods that are available go before those that are not yet", "controller/replicaset/rank.go",
		"falseFirst(a.available, b.available)", "falseFirst(a.available != MUTATED, b.available != MUTATED)"},
	{"adopting what is gone ends the sync", "controller/replicaset/apply.go",
		"if err := ownership.AfterAdopt(err); err != nil {",
		"if MUTATED && apierrors.IsNotFound(err) {\n return nil\n }\n if err := ownership.AfterAdopt(err); err != nil {"},

	{"a Pod about to be bound is not counted", "scheduler/scheduler.go",
		"s.cluster.assume(pod.UID, d, plan.Bind.Node)", "if !MUTATED { s.cluster.assume(pod.UID, d, plan.Bind.Node) }"},
	{"a node takes Pods until it has more than it can", "scheduler/filter.go",
		"amount <= have-used", "(amount <= have-used || MUTATED && used <= have)"},
	{"nobody is tried on a new node", "scheduler/observe.go",
		"\ts.tryOn(node.Name)\n\ts.refreshMessages()", "if !MUTATED { s.tryOn(node.Name); s.refreshMessages() }"},

	{"one owner that lives is not enough", "controller/garbage/plan.go",
		"case len(keepers) > 0:", "case len(keepers) > 0 && !(MUTATED && len(keepers) == 1):"},
	{"an owner found is taken for another", "controller/garbage/observe.go",
		"err == nil && owner.UID != ref.UID:\n\t\to.absent", "err == nil && (owner.UID != ref.UID) != MUTATED:\n\t\to.absent"},
	{"orphans are not let go of", "controller/garbage/plan.go",
		"for _, dep := range o.Dependents {\n\t\tp.Actions", "for _, dep := range o.Dependents {\n if MUTATED { break }\n p.Actions"},
	{"a foreground deletion waits for those that do not block it", "controller/garbage/plan.go",
		"if !dep.Blocking {", "if dep.Blocking == MUTATED {"},
	{"the end of an owner wakes no dependent", "controller/garbage/graph.go",
		"w := wakes{now: g.dependentUIDs(uid)}", "w := wakes{now: g.dependentUIDs(uid)}; if MUTATED { w.now = nil }"},

	{"the Pods of all nodes but the lost one are ended", "controller/podgc/observe.go",
		"return pod.Spec.NodeName != node", "return (pod.Spec.NodeName != node) != MUTATED"},
	{"a node that is gone is taken to be there", "controller/podgc/observe.go",
		"o.State = NodeGone", "o.State = NodeGone; if MUTATED { o.State = NodeThere }"},

	{"a node is called silent after half its grace period", "controller/nodehealth/fleet.go",
		"return silence{since: s.seen, grace: gracePeriod}", "if MUTATED { return silence{since: s.seen, grace: gracePeriod / 2} }; return silence{since: s.seen, grace: gracePeriod}"},
	{"a node's silence is not confirmed", "controller/nodehealth/observe.go",
		"if !c.fleet.silenceOf(node.Name, now).isOver(now) ||", "if MUTATED || !c.fleet.silenceOf(node.Name, now).isOver(now) ||"},
	{"no node waits for its turn to be evicted", "controller/nodehealth/plan.go",
		"case o.Brake.evictAt.After(now):", "case o.Brake.evictAt.After(now) && !MUTATED:"},
	{"the taints of a node stay when it is heard", "controller/nodehealth/plan.go",
		"if isOurs(taint) && !hasTaint(wanted, taint) {", "if isOurs(taint) && !hasTaint(wanted, taint) && !MUTATED {"},

	{"no Pod may stay for a time", "controller/tainteviction/plan.go",
		"limit, isLimited = lasts, true", "limit, isLimited = lasts, true; if MUTATED { limit = 0 }"},

	{"an empty namespace is let go of at once", "controller/namespace/plan.go",
		"if age < settleTime {", "if age < settleTime && !MUTATED {"},
	{"the finalizers of others are taken off a namespace", "controller/namespace/plan.go",
		"if f != corev1.FinalizerKubernetes {", "if f != corev1.FinalizerKubernetes && !MUTATED {"},
	{"a namespace goes although not all kinds are known", "controller/namespace/plan.go",
		"o.DiscoveryFailure == \"\" &&", "(o.DiscoveryFailure == \"\" || MUTATED) &&"},
	{"a kind that cannot be listed is taken to be empty", "controller/namespace/observe.go",
		"kind.Failure = err.Error()", "if !MUTATED { kind.Failure = err.Error() }"},
	{"what Pods need goes with them", "controller/namespace/observe.go",
		"if kind.Resource == podsResource && (", "if !MUTATED && kind.Resource == podsResource && ("},
	{"Pods are killed with their namespace", "controller/namespace/apply.go",
		"opts := metav1.DeleteOptions{PropagationPolicy: &background}",
		"opts := metav1.DeleteOptions{PropagationPolicy: &background}; if MUTATED { opts.GracePeriodSeconds = new(int64) }"},
	{"all namespaces are emptied", "controller/namespace/apply.go",
		"if a.InBulk {", "if MUTATED { resource = c.metadata.Resource(a.Resource).Namespace(\"\") }; if a.InBulk {"},

	{"the end of a system namespace is not noticed", "controller/namespace/system.go",
		"slices.Contains(System, key.Name) {", "slices.Contains(System, key.Name) && !MUTATED {"},
	{"one of the system's namespaces is never made", "controller/namespace/system.go",
		"isMissing && slices.Contains(System, name)", "isMissing && slices.Contains(System, name) && !(MUTATED && name == System[2])"},

	{"the end of a ServiceAccount is not noticed", "controller/serviceaccount/controller.go",
		"key.Name == defaultName {", "key.Name == defaultName && !MUTATED {"},
	{"a namespace that is there already needs no ServiceAccount", "controller/serviceaccount/controller.go",
		"AddFunc:    byName,", "AddFunc: func(obj any) { if !MUTATED { byName(obj) } },"},
	{"a ServiceAccount that was made is taken to be in view", "controller/serviceaccount/controller.go",
		"return loop.ErrStale", "if MUTATED { return nil }; return loop.ErrStale"},

	{"changed certificates stay", "controller/rootca/plan.go",
		"case !maps.Equal(have.Data, data) || have", "case !MUTATED && !maps.Equal(have.Data, data) || have"},
	{"certificates that cannot be changed stay", "controller/rootca/plan.go",
		"case !maps.Equal(have.Data, data) && have", "case !MUTATED && !maps.Equal(have.Data, data) && have"},
	{"the end of certificates is not noticed", "controller/rootca/controller.go",
		"DeleteFunc: byConfigMap,", "DeleteFunc: func(obj any) { if !MUTATED { byConfigMap(obj) } },"},
	{"certificates that were made are taken to be in view", "controller/rootca/controller.go",
		"if err == nil {\n", "if err == nil && !MUTATED {\n"},

	{"the view need not have reached the last written slice", "controller/endpoints/endpointslice/controller.go",
		"if !c.writes.CaughtUp(key) {\n\t\treturn loop.ErrStale\n", "if !MUTATED && !c.writes.CaughtUp(key) {\n\t\treturn loop.ErrStale\n"},
	{"a slice that was deleted before it showed is waited for", "controller/endpoints/endpointslice/controller.go",
		"if c.tracker.StaleSlices(service, have) {", "if c.tracker.StaleSlices(service, have) {\n if MUTATED { return loop.ErrStale }"},
	{"the end of a slice from before the start is not noticed", "controller/endpoints/endpointslice/controller.go",
		"c.tracker.Has(slice) && c.tracker.HandleDeletion(slice)",
		"(MUTATED && !c.tracker.Has(slice) || c.tracker.Has(slice) && c.tracker.HandleDeletion(slice))"},
	{"slices show what is not selected", "controller/endpoints/endpointslice/controller.go",
		"labels.Set(service.Spec.Selector)", "labels.Set(map[bool]map[string]string{false: service.Spec.Selector}[MUTATED])"},
	{"the end of a Pod wakes no Service", "controller/endpoints/podservices/podservices.go",
		"{ changed(obj, nil) }", "{ if !MUTATED { changed(obj, nil) } }"},

	{"Pods that end stay in Endpoints", "controller/endpoints/plan.go",
		"ShouldPodBeInEndpoints(pod, service.Spec.PublishNotReadyAddresses)", "ShouldPodBeInEndpoints(pod, service.Spec.PublishNotReadyAddresses || MUTATED)"},
	{"all of Endpoints are ready", "controller/endpoints/plan.go",
		"|| podutil.IsPodReady(pod)}, true", "|| podutil.IsPodReady(pod) || MUTATED}, true"},
	{"Endpoints outlive their Service", "controller/endpoints/plan.go",
		"case o.Service == nil:\n", "case o.Service == nil && MUTATED: return Plan{}\n case o.Service == nil:\n"},
	{"Endpoints that were deleted before they showed are not missed", "controller/endpoints/controller.go",
		"if err == nil && !c", "if !MUTATED && err == nil && !c"},
	{"Endpoints that others changed stay", "controller/endpoints/observe.go", "if isManaged(obj) {", "if isManaged(obj) && !MUTATED {"},
	{"Endpoints whose Service ended before the start are not noticed", "controller/endpoints/observe.go",
		"if inFirstList && ", "if !MUTATED && inFirstList && "},

	{"the youngest Service gets a port", "controller/loadbalancer/plan.go",
		"if isOlder(rival, o.Service) &&", "if isOlder(rival, o.Service) != MUTATED &&"},
	{"a port of the nodes' own is given away", "controller/loadbalancer/plan.go",
		"if slices.Contains(o.Reserved, p.Port) {", "if slices.Contains(o.Reserved, p.Port) && !MUTATED {"},
	{"nodes without endpoints are given too", "controller/loadbalancer/plan.go",
		"if o.Service.Spec.ExternalTrafficPolicy != v1", "if MUTATED || o.Service.Spec.ExternalTrafficPolicy != v1"},
	{"nodes that are to be left out are not", "controller/loadbalancer/plan.go",
		"out || !isReady(node)", "out && !MUTATED || !isReady(node)"},
	{"a change of a node's use is not noticed", "controller/loadbalancer/observe.go",
		"if isReady(before) != isReady(node) || wasOut", "if MUTATED {\n return\n }\n if isReady(before) != isReady(node) || wasOut"},
	{"where endpoints are wakes no Service", "controller/loadbalancer/observe.go",
		"if err == nil && isOurs(s) &&", "if !MUTATED && err == nil && isOurs(s) &&"},

	{"the view need not have reached the last mirrored slice", "controller/endpoints/mirror/controller.go",
		"if !c.writes.CaughtUp(key) {\n\t\treturn", "if !MUTATED && !c.writes.CaughtUp(key) {\n\t\treturn"},
	{"mirrored slices that were deleted before they showed are not missed", "controller/endpoints/mirror/controller.go",
		"if err == nil && !c", "if !MUTATED && err == nil && !c"},
	{"all of mirrored Endpoints are ready", "controller/endpoints/mirror/plan.go",
		"add(subset.NotReadyAddresses, false)", "add(subset.NotReadyAddresses, MUTATED)"},
	{"Endpoints are mirrored that are not to be", "controller/endpoints/mirror/plan.go",
		"e.Labels[discovery.LabelSkipMirror] != \"true\"", "(MUTATED || e.Labels[discovery.LabelSkipMirror] != \"true\")"},
	{"Endpoints of Services with a selector are mirrored", "controller/endpoints/mirror/plan.go",
		"o.Service == nil || o.Service.Spec.Selector != nil {", "o.Service == nil || o.Service.Spec.Selector != nil && !MUTATED {"},
	{"slices of subsets that are gone stay", "controller/endpoints/mirror/plan.go",
		"p.Actions = append(p.Actions, deleteAll(have,", "if MUTATED { have = nil }; p.Actions = append(p.Actions, deleteAll(have,"},
	{"mirrored slices that others changed stay", "controller/endpoints/mirror/observe.go",
		"if ok && slice.Labels", "if !MUTATED && ok && slice.Labels"},

	{"a range goes at once", "controller/servicecidr/plan.go", "now.Before(at) {", "now.Before(at) && !MUTATED {"},
	{"a range goes with addresses in it", "controller/servicecidr/plan.go", "if isBlocked(o) {", "if isBlocked(o) && !MUTATED {"},
	{"a range on its way out holds addresses", "controller/servicecidr/plan.go",
		"if other.DeletionTimestamp == nil {", "if other.DeletionTimestamp == nil || MUTATED {"},
	{"a default range that was deleted before it showed is not missed", "controller/servicecidr/controller.go",
		"if p.Create != nil {", "if p.Create != nil && !MUTATED {"},
	{"an address that is given up frees no range", "controller/servicecidr/controller.go",
		"DeleteFunc: byAddress,", "DeleteFunc: func(obj any) { if !MUTATED { byAddress(obj) } },"},
	{"an address that is no Service's any more frees no range", "controller/servicecidr/controller.go",
		"{ byAddress(obj) }, //", "{ if !MUTATED { byAddress(obj) } }, //"},
	{"a new range frees none", "controller/servicecidr/controller.go",
		"wake(obj); c.leaving(nil, l.Add)", "wake(obj); if !MUTATED { c.leaving(nil, l.Add) }"},

	{"an IPAddress goes before its Service may have come", "controller/ipaddress/plan.go",
		"patience = lostAfter\n", "if !MUTATED { patience = lostAfter }\n"},
	{"a Service that the view does not show is taken to be gone", "controller/ipaddress/controller.go",
		"if len(p.Actions) == 0 || !refersToService(r) {", "if MUTATED || len(p.Actions) == 0 || !refersToService(r) {"},
	{"what the view does not show yet is taken to be settled", "controller/ipaddress/controller.go",
		"if p.Recheck.IsZero() {", "if p.Recheck.IsZero() && !MUTATED {"},
	{"IPAddresses of Services that are gone stay", "controller/ipaddress/plan.go",
		"\tif s == nil {\n\t\treturn drop(", "\tif s == nil && MUTATED {\n\t\treturn Plan{}\n\t}\n\tif s == nil {\n\t\treturn drop("},
	{"a Service whose address is said to be another's is not looked at again", "controller/ipaddress/plan.go",
		"again = settledAfter //", "again = map[bool]time.Duration{false: settledAfter}[MUTATED] //"},
	{"the end of an IPAddress is not noticed", "controller/ipaddress/controller.go",
		"DeleteFunc: func(obj any) { see(obj, true) },", "DeleteFunc: func(obj any) { if !MUTATED { see(obj, true) } },"},
	{"IPAddresses stay without their labels", "controller/ipaddress/plan.go",
		"if !isLabelled(c.Record, family) {", "if !MUTATED && !isLabelled(c.Record, family) {"},
}

// parts are the parts of a run in which the loops of a room take part, by the beginning
// of its path; the others are in every run. Only runs that have a bug's loop are made.
var parts = []struct{ room, part string }{
	{"controller/nodehealth/", "silence"}, {"controller/tainteviction/", "silence"},
	{"controller/namespace/", "namespaces"}, {"controller/serviceaccount/", "namespaces"}, {"controller/rootca/", "namespaces"},
	{"controller/endpoints/mirror/", "mirrors"}, {"controller/endpoints/", "services"},
	{"controller/loadbalancer/", "balancers"}, {"controller/servicecidr/", "addresses"}, {"controller/ipaddress/", "addresses"},
}

func (m mutation) part() string {
	for _, p := range parts {
		if strings.HasPrefix(m.file, p.room) {
			return p.part
		}
	}
	return ""
}

// TestMutations puts all bugs in, by an overlay over the source, switches one on at
// a time, and expects the simulator to fail on it, and on none of them switched
// off. The bugs of the past are among them: those the simulator found.
func TestMutations(t *testing.T) {
	binary := buildMutated(t)
	if out, err := runMutated(t, binary, mutation{}, 100); err != nil {
		t.Fatalf("fails without a bug: %v\n%s", err, out)
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			out, err := runMutated(t, binary, m, 2000)
			first, _, _ := strings.Cut(out, "\nreplay:")
			switch at := strings.Index(first, "seed "); {
			case err == nil:
				t.Errorf("2,000 seeds do not notice")
			case at < 0:
				t.Errorf("the run failed otherwise: %v\n%s", err, out)
			default:
				t.Log(strings.TrimSpace(first[at:]))
			}
		})
	}
}

func runMutated(t *testing.T, binary string, m mutation, seeds int) (string, error) {
	t.Helper()
	run := exec.CommandContext(t.Context(), binary, "-test.run=^TestSeeds$")
	run.Env = append(os.Environ(), "SIM_BRIEF=1", "SIM_SEED=", "SIM_FROM="+strconv.Itoa(max(1, rare[m.name])), "SIM_SECONDS=240",
		"SIM_SEEDS="+strconv.Itoa(seeds), "SIM_MUTATION="+m.name, "SIM_PART="+m.part())
	out, err := run.CombinedOutput()
	return string(out), err
}

// buildMutated builds this package's tests with every mutation in the loops, each
// behind its switch.
func buildMutated(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	sources, replace := map[string]string{}, map[string]string{}
	for _, m := range mutations {
		path, err := filepath.Abs(filepath.Join("..", m.file))
		if err != nil {
			t.Fatal(err)
		}
		if _, read := sources[path]; !read {
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			sources[path] = string(source)
			room := filepath.Dir(path)
			sources[filepath.Join(room, "mutated.go")] = "package " + filepath.Base(room) +
				"\n\nimport \"os\"\n\nvar mutation = os.Getenv(\"SIM_MUTATION\")\n\nfunc mutated(name string) bool { return mutation == name }\n"
		}
		if n := strings.Count(sources[path], m.old); n != 1 {
			t.Fatalf("%s has %d places that read %q, want 1: adapt the mutation %q", m.file, n, m.old, m.name)
		}
		next := strings.ReplaceAll(m.new, "MUTATED", "mutated("+strconv.Quote(m.name)+")")
		sources[path] = strings.Replace(sources[path], m.old, next, 1)
	}
	for path, source := range sources {
		replace[path] = filepath.Join(dir, strconv.Itoa(len(replace))+".go")
		write(t, replace[path], source)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	write(t, file, string(overlay))
	// Without the race detector, and linked without debug information: it is the
	// build that costs.
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-trimpath", "-ldflags=-s -w", "-vet=off", "-overlay", file, "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the mutated loops do not build: %v\n%s", err, out)
	}
	return binary
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
