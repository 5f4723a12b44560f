package deployment

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	apps "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestLimitsRoundAsInKubernetes(t *testing.T) {
	pct := intstr.FromString
	num := intstr.FromInt32
	tests := []struct {
		surge, unavailable intstr.IntOrString
		want               int32
		limits             limits
	}{
		// The worked examples of ResolveFenceposts.
		{pct("0%"), pct("1%"), 2, limits{0, 1}},
		{pct("0%"), pct("1%"), 1, limits{0, 1}},
		{pct("1%"), pct("25%"), 2, limits{1, 0}},
		{pct("1%"), pct("25%"), 1, limits{1, 0}},
		{pct("1%"), pct("0%"), 2, limits{1, 0}},
		{pct("1%"), pct("0%"), 1, limits{1, 0}},
		// The defaults.
		{pct("25%"), pct("25%"), 1, limits{1, 0}},
		{pct("25%"), pct("25%"), 3, limits{1, 0}},
		{pct("25%"), pct("25%"), 4, limits{1, 1}},
		{pct("25%"), pct("25%"), 10, limits{3, 2}},
		{pct("25%"), pct("25%"), 15, limits{4, 3}},
		// Numbers are taken as they are; nobody can be more unavailable than all.
		{num(1), num(1), 3, limits{1, 1}},
		{num(5), num(7), 3, limits{5, 3}},
		{num(2), num(1), 0, limits{2, 0}},
		{pct("100%"), pct("100%"), 6, limits{6, 6}},
		{pct("0%"), pct("0%"), 0, limits{0, 0}},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%s, %s of %d", test.surge.String(), test.unavailable.String(), test.want), func(t *testing.T) {
			strategy := apps.DeploymentStrategy{
				Type:          apps.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &apps.RollingUpdateDeployment{MaxSurge: &test.surge, MaxUnavailable: &test.unavailable},
			}
			if got := resolveLimits(strategy, test.want); got != test.limits {
				t.Errorf("limits %+v, want %+v", got, test.limits)
			}
		})
	}
	if got := resolveLimits(apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType}, 5); got != (limits{}) {
		t.Errorf("Recreate has limits %+v", got)
	}
	if got := resolveLimits(apps.DeploymentStrategy{Type: apps.RollingUpdateDeploymentStrategyType}, 5); got != (limits{0, 1}) {
		t.Errorf("RollingUpdate without parameters has limits %+v", got)
	}
}

func TestPortion(t *testing.T) {
	tests := []struct{ size, target, change, spread, want int32 }{
		{8, 23, 25, 0, 15}, {5, 15, 25, 15, 10}, // 10 → 30 in mid-rollout
		{5, 15, 12, 8, 4},    // no more than is left
		{5, 15, 12, 12, 0},   // nothing is left
		{8, 6, 2, 0, 0},      // growing takes nothing away
		{8, 4, -6, 0, -4},    // shrinking
		{8, 4, -6, -5, -1},   // no more than is left
		{5, 9, -6, 0, 0},     // shrinking gives nothing
		{5, 9, 0, 0, 0},      // no change
		{3, 0, -12, 0, -3},   // to zero
		{3, 0, -12, -11, -1}, // to zero, with less left than it has
	}
	for _, test := range tests {
		if got := portion(test.size, test.target, test.change, test.spread); got != test.want {
			t.Errorf("portion(size %d, target %d, change %d, spread %d) = %d, want %d",
				test.size, test.target, test.change, test.spread, got, test.want)
		}
	}
}

// size is how many Pods a ReplicaSet of a rollout wants and how many are available.
type size struct{ pods, available int32 }

// none are sizes with no Pod available.
func none(pods ...int32) []size {
	var sizes []size
	for _, n := range pods {
		sizes = append(sizes, size{n, 0})
	}
	return sizes
}

var proportionCases = map[string]struct {
	from, to       int32
	surgeWas       intstr.IntOrString
	surge          intstr.IntOrString
	sizes          []size // versions 1, 2, …; the last one is new
	lostAnnotation bool
	zeroAnnotation bool
	want           []int32
}{
	// Worked numbers of Kubernetes' own tests.
	"one, 10 to 12":                 {from: 10, to: 12, sizes: none(10), want: []int32{12}},
	"one, 10 to 5":                  {from: 10, to: 5, sizes: none(10), want: []int32{5}},
	"two, 5 to 10":                  {from: 5, to: 10, sizes: none(3, 2), want: []int32{6, 4}},
	"two, 5 to 3":                   {from: 5, to: 3, sizes: none(3, 2), want: []int32{2, 1}},
	"two, 9 to 4":                   {from: 9, to: 4, sizes: none(1, 8), want: []int32{0, 4}},
	"three, 7 to 10":                {from: 7, to: 10, sizes: none(2, 3, 2), want: []int32{3, 4, 3}},
	"three, 13 to 8":                {from: 13, to: 8, sizes: none(3, 8, 2), want: []int32{2, 5, 1}},
	"of equals the newest grows":    {from: 3, to: 4, sizes: none(1, 1, 1), want: []int32{1, 1, 2}},
	"of equals the oldest shrinks":  {from: 3, to: 2, sizes: none(1, 1, 1), want: []int32{0, 1, 1}},
	"three, 6 to 0":                 {from: 6, to: 0, sizes: none(1, 2, 3), want: []int32{0, 0, 0}},
	"two with surge, 10 to 20":      {from: 10, to: 20, surgeWas: intstr.FromInt32(2), surge: intstr.FromInt32(2), sizes: none(6, 6), want: []int32{11, 11}},
	"size and surge, 10 to 50":      {from: 10, to: 50, surgeWas: intstr.FromInt32(3), surge: intstr.FromInt32(6), sizes: none(8, 5), want: []int32{34, 22}},
	"a surge of 25 %, 10 to 30":     {from: 10, to: 30, surgeWas: intstr.FromString("25%"), surge: intstr.FromString("25%"), sizes: []size{{8, 8}, {5, 0}}, want: []int32{23, 15}},
	"a surge of 25 %, 10 to 20":     {from: 10, to: 20, surgeWas: intstr.FromString("25%"), surge: intstr.FromString("25%"), sizes: none(3, 5, 5), want: []int32{5, 10, 10}},
	"a surge in numbers, 6 to 0":    {from: 6, to: 0, surgeWas: intstr.FromInt32(2), surge: intstr.FromInt32(2), sizes: none(1, 2, 3), want: []int32{0, 0, 0}},
	"the new one has all already":   {from: 10, to: 5, surgeWas: intstr.FromString("25%"), surge: intstr.FromString("25%"), sizes: []size{{8, 8}, {5, 5}}, want: []int32{4, 3}},
	"a note that cannot be":         {from: 10, to: 20, surge: intstr.FromString("25%"), sizes: none(8, 5), zeroAnnotation: true, want: []int32{15, 10}},
	"Pods counted instead of notes": {from: 10, to: 20, surge: intstr.FromString("25%"), sizes: none(8, 5), lostAnnotation: true, want: []int32{15, 10}},
	// Where Kubernetes would go below the floor of 7 − 1, by a rounding: [5 4].
	"rounding keeps the floor": {from: 9, to: 7, surgeWas: intstr.FromString("25%"), surge: intstr.FromString("25%"), sizes: []size{{7, 7}, {5, 0}}, want: []int32{6, 3}},
	// Where Kubernetes would take 8 of the second and give them to the first: [68 32].
	"growing to a lower ceiling takes from nobody": {from: 100, to: 80, surgeWas: intstr.FromString("25%"), surge: intstr.FromString("25%"), sizes: []size{{50, 50}, {40, 40}}, want: []int32{60, 40}},
}

func TestScalingInProportion(t *testing.T) {
	for name, test := range proportionCases {
		t.Run(name, func(t *testing.T) {
			d := rollingDeployment(test.from, test.surgeWas, intstr.FromString("25%"))
			o := Observed{Deployment: d}
			d.Status.Replicas = 0
			for i, s := range test.sizes {
				rs := replicaSet(d, i+1, i+1, s.pods, s.available)
				if test.lostAnnotation {
					delete(rs.Annotations, maxAnnotation)
				}
				if test.zeroAnnotation {
					rs.Annotations[maxAnnotation] = "0"
				}
				o.ReplicaSets = append(o.ReplicaSets, rs)
				d.Status.Replicas += s.pods
			}
			rollTo(&o, len(test.sizes))
			scaleTo(&o, test.to)
			d.Spec.Strategy.RollingUpdate.MaxSurge = &test.surge
			p := plan(o, start)
			if diff := cmp.Diff(test.want, sizesAfter(o, p)); diff != "" {
				t.Errorf("sizes (-want +got):\n%s", diff)
			}
			l := resolveLimits(d.Spec.Strategy, test.to)
			for _, rs := range o.ReplicaSets {
				checkStamps(t, rs, p, test.to, test.to+l.surge)
			}
		})
	}
}

// checkStamps wants the Deployment's size and ceiling on the ReplicaSet once the
// plan is carried out.
func checkStamps(t *testing.T, rs *apps.ReplicaSet, p Plan, desired, ceiling int32) {
	t.Helper()
	got := maps.Clone(rs.Annotations)
	for _, action := range p.Actions {
		if update, ok := action.(Update); ok && update.ReplicaSet == rs {
			maps.Copy(got, update.Annotations)
		}
	}
	for key, want := range map[string]int32{desiredAnnotation: desired, maxAnnotation: ceiling} {
		if got[key] != fmt.Sprint(want) {
			t.Errorf("%s of %s is %q, want %d", key, rs.Name, got[key], want)
		}
	}
}

// sizesAfter are the sizes of the observed ReplicaSets once the plan is carried out.
func sizesAfter(o Observed, p Plan) []int32 {
	sizes := make([]int32, len(o.ReplicaSets))
	for i, rs := range o.ReplicaSets {
		sizes[i] = *rs.Spec.Replicas
		for _, action := range p.Actions {
			if update, ok := action.(Update); ok && update.ReplicaSet == rs {
				sizes[i] = update.Replicas
			}
		}
	}
	return sizes
}

var rollCases = map[string]struct {
	replicas    int32
	old, new    size
	oldReported int32 // Pods the old one still has, if more than it wants
	want        [2]int32
}{
	"the first step takes the surge and what the floor spares": {replicas: 10, old: size{10, 10}, new: size{0, 0}, want: [2]int32{8, 3}},
	"Pods told to go, but still there, take up room":           {replicas: 10, old: size{8, 10}, new: size{3, 0}, oldReported: 10, want: [2]int32{8, 3}},
	"once they are gone there is room":                         {replicas: 10, old: size{8, 8}, new: size{3, 0}, want: [2]int32{8, 5}},
	"nothing moves while the new ones are not available":       {replicas: 10, old: size{8, 8}, new: size{5, 0}, want: [2]int32{8, 5}},
	"each new one that is available frees an old one":          {replicas: 10, old: size{8, 8}, new: size{5, 2}, want: [2]int32{6, 5}},
	"one that broke down takes no other with it":               {replicas: 10, old: size{8, 7}, new: size{5, 0}, want: [2]int32{8, 5}},
	"what is below the floor is not made up for by old ones":   {replicas: 10, old: size{7, 6}, new: size{5, 0}, want: [2]int32{7, 6}},
	"after an undo the broken ones go":                         {replicas: 10, old: size{5, 0}, new: size{8, 8}, want: [2]int32{0, 8}},
	"after an undo with a good one broken":                     {replicas: 10, old: size{5, 0}, new: size{8, 7}, want: [2]int32{1, 8}},
	"after an undo, the broken ones gone, it is filled up":     {replicas: 10, old: size{0, 0}, new: size{8, 8}, want: [2]int32{0, 10}},
	"unhealthy old ones go first":                              {replicas: 10, old: size{10, 6}, new: size{3, 3}, want: [2]int32{5, 3}},
	"a new one too large is cut":                               {replicas: 10, old: size{3, 3}, new: size{12, 10}, want: [2]int32{0, 10}},
	"the last old one goes":                                    {replicas: 3, old: size{1, 1}, new: size{3, 3}, want: [2]int32{0, 3}},
	"three Pods move one by one":                               {replicas: 3, old: size{3, 3}, new: size{0, 0}, want: [2]int32{3, 1}},
	"fifteen Pods begin with four above and three below":       {replicas: 15, old: size{15, 15}, new: size{0, 0}, want: [2]int32{12, 4}},
}

func TestRolling(t *testing.T) {
	for name, test := range rollCases {
		t.Run(name, func(t *testing.T) {
			d := rollingDeployment(test.replicas, intstr.FromString("25%"), intstr.FromString("25%"))
			old := replicaSet(d, 1, 1, test.old.pods, test.old.available)
			current := replicaSet(d, 2, 2, test.new.pods, test.new.available)
			old.Status.Replicas = max(old.Status.Replicas, test.oldReported)
			o := Observed{Deployment: d, ReplicaSets: []*apps.ReplicaSet{old, current}}
			if diff := cmp.Diff(test.want[:], sizesAfter(o, plan(o, start))); diff != "" {
				t.Errorf("sizes (-want +got):\n%s", diff)
			}
		})
	}
}

// Found by simulation: a report from before the cut to 2 said 16 available, and
// growing to 4 made it look as if 4 were.
func TestWhatThisPlanAddsIsNotAvailableYet(t *testing.T) {
	d := rollingDeployment(17, intstr.FromInt32(16), intstr.FromInt32(0))
	o := Observed{Deployment: d, ReplicaSets: []*apps.ReplicaSet{replicaSet(d, 1, 1, 15, 15), replicaSet(d, 2, 2, 2, 16)}}
	o.ReplicaSets[1].Status.Replicas = 16
	if diff := cmp.Diff([]int32{15, 4}, sizesAfter(o, plan(o, start))); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
}

func TestTheOldestShrinksFirst(t *testing.T) {
	d := rollingDeployment(10, intstr.FromInt32(0), intstr.FromInt32(2))
	o := Observed{Deployment: d, ReplicaSets: []*apps.ReplicaSet{
		replicaSet(d, 1, 1, 3, 3), replicaSet(d, 3, 3, 4, 4), replicaSet(d, 2, 4, 3, 3),
	}}
	if diff := cmp.Diff([]int32{1, 4, 3}, sizesAfter(o, plan(o, start))); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
}

func TestCount(t *testing.T) {
	for text, want := range map[string]int32{"0": 0, "10": 10, "2147483647": 2147483647} {
		if got, ok := count(text); !ok || got != want {
			t.Errorf("count(%q) = %d, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "-1", "2147483648", "ten", "1.5"} {
		if got, ok := count(text); ok {
			t.Errorf("count(%q) = %d", text, got)
		}
	}
}

func TestALostAnnotationIsNoScaling(t *testing.T) {
	o := midway()
	o.ReplicaSets[1].Annotations = nil
	delete(o.ReplicaSets[2].Annotations, desiredAnnotation)
	o.Deployment.Spec.Replicas = ptr.To[int32](12) // ceiling 15, floor 9
	if diff := cmp.Diff([]int32{0, 8, 7}, sizesAfter(o, plan(o, start))); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
}
