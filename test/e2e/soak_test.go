package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// judgedFrom is the shortest soak whose memory is judged: before, what is made once
	// outweighs what grows.
	judgedFrom = 10 * time.Minute
	// growthMost is by how much memory may grow behind the first sixth, in percent.
	growthMost  = 5
	soakReport  = time.Minute
	rolloutTime = "--timeout=120s"
)

// soak is a cluster under random kills, rollouts and load.
type soak struct {
	*cluster
	random  *rand.Rand
	port    string
	writes  *writer
	before  map[string]facts
	round   int
	done    map[string]int
	samples map[string][]int64 // resident bytes, one each action, until mend and containerd are killed
}

// soakTime is how long the soak lasts: MEND_SOAK, or by the size of the run.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	if text := os.Getenv("MEND_SOAK"); text != "" {
		asked, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("MEND_SOAK: %v", err)
		}
		return asked
	}
	return time.Duration(size(t, 15, 40, 180)) * time.Second
}

// TestSoak kills, rolls and loads at random for as long as told. Every violation is
// reported and the soak goes on. mend and containerd live through the first five sixths,
// so that what they leak can grow, and are killed in the last. Memory is sampled behind
// the first sixth: what a process makes once is there by then.
func TestSoak(t *testing.T) {
	needRoot(t)
	lasts := soakTime(t)
	s := &soak{cluster: newCluster(t), random: seeded(t), port: freePort(t), done: map[string]int{}, samples: map[string][]int64{}}
	s.start(s.flags()...)
	s.mustApply(fmt.Sprintf(restingManifest, 5))
	s.mustKubectl("rollout", "status", "deployment/rest", rolloutTime)
	s.mustKubectl("rollout", "status", "deployment/roll", rolloutTime)
	s.readyPod("talker")
	s.before = s.resting("app=rest")
	s.writes = s.startWriter(100, 50*time.Millisecond)
	began := time.Now()
	reported := time.Now()
	for time.Since(began) < lasts*5/6 {
		s.act(s.gentle())
		if time.Since(began) > lasts/6 {
			s.sample()
		}
		if time.Since(reported) > soakReport {
			reported = time.Now()
			t.Logf("after %s: %v, memory %v", time.Since(began).Round(time.Second), s.done, s.memory())
		}
	}
	for time.Since(began) < lasts {
		s.act(append(s.gentle(), s.rough()...))
	}
	for _, one := range s.rough() {
		s.act([]action{one})
	}
	s.writes.end()
	s.check("at the end")
	s.noLineLost("talker")
	t.Logf("%s: %v, %d acknowledged writes", lasts, s.done, s.writes.count())
	s.judgeMemory(lasts)
}

// action is one thing that the soak does to the cluster.
type action struct {
	name string
	do   func()
}

// act does one of the actions and looks for violations.
func (s *soak) act(choice []action) {
	s.t.Helper()
	one := choice[s.random.IntN(len(choice))]
	one.do()
	s.done[one.name]++
	s.check(one.name)
	pause(s.random, 500*time.Millisecond)
}

// check looks for what must never be, whatever was done.
func (s *soak) check(when string) {
	s.t.Helper()
	s.writes.check(s.t, when)
	s.mustKubectl("rollout", "status", "deployment/roll", rolloutTime)
	s.eventually(when+": every Pod runs once and nothing else", s.eachRunsOnce)
	sameFacts(s.t, when, s.before, s.resting("app=rest"))
	if message, healthy := s.component("loops"); !healthy {
		s.t.Errorf("%s: loops: %s", when, message)
	}
}

// rough actions kill what holds the cluster.
func (s *soak) rough() []action {
	return []action{
		{"kill mend", func() { s.endMend(unix.SIGKILL) }},
		{"kill mend under a rollout", func() {
			s.roll()
			pause(s.random, time.Second)
			s.endMend(unix.SIGKILL)
		}},
		{"end mend", func() { s.endMend(unix.SIGTERM) }},
		{"kill containerd", func() {
			pid := s.containerdPID()
			s.signal(pid, unix.SIGKILL)
			s.eventually("containerd runs again", func() string { return want(s.containerdPID() != pid, "it was process %d", pid) })
		}},
	}
}

// flags keep events for a few minutes only: what is stored must not grow while the memory is
// judged.
func (s *soak) flags() []string { return []string{"--api-port", s.port, "--event-ttl", "3m"} }

func (s *soak) endMend(signal unix.Signal) {
	s.signal(s.mendPID(), signal)
	s.startMeasured(s.flags()...)
}

// gentle actions are those that a cluster sees each day.
func (s *soak) gentle() []action {
	return []action{
		{"roll", s.roll},
		{"scale", func() {
			s.mustKubectl("scale", "deployment/roll", "--replicas="+strconv.Itoa(1+s.random.IntN(6)))
		}},
		{"delete a Pod", func() { s.mustKubectl("delete", "pod", s.anyRolled(), "--wait=false") }},
		{"kill a container", func() { s.kubectl("exec", s.anyRolled(), "--", "kill", "1") }},
		{"kill a shim", func() { s.signal(s.shimOf(s.anyRolled()), unix.SIGKILL) }},
		{"read", func() {
			s.mustKubectl("get", "pods,deployments,replicasets,events", "-A", "-o", "yaml")
			s.mustKubectl("logs", "talker", "--tail=100")
			s.mustKubectl("exec", "talker", "--", "true")
		}},
	}
}

func (s *soak) roll() {
	s.round++
	s.mustKubectl("set", "env", "deployment/roll", "ROUND="+strconv.Itoa(s.round))
}

// anyRolled is a Pod of the Deployment that is not at rest, one that was never
// restarted: others might wait long before they are again.
func (s *soak) anyRolled() string {
	s.t.Helper()
	fresh := func() []string {
		var names []string
		for name, is := range s.resting("app=roll") {
			if strings.HasPrefix(is.Ready, "True") && strings.HasSuffix(is.Containers, " 0;") {
				names = append(names, name)
			}
		}
		return names
	}
	names := fresh()
	if len(names) == 0 {
		s.roll()
		s.mustKubectl("rollout", "status", "deployment/roll", rolloutTime)
		if names = fresh(); len(names) == 0 {
			s.t.Fatal("after a rollout no Pod is Ready that was never restarted")
		}
	}
	slices.Sort(names)
	return names[s.random.IntN(len(names))]
}

// memory is what the processes hold themselves, in bytes, and beside it what is
// resident with the files that they map: those pages, of the store's database for one,
// are the kernel's to take back, and grow with what is stored.
func (s *soak) memory() map[string]int64 {
	s.t.Helper()
	found := map[string]int64{}
	for name, pid := range map[string]int{"mend": s.mendPID(), "containerd": s.containerdPID()} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		s.must(err)
		for field, of := range map[string]string{"RssAnon": name, "VmRSS": name + withFiles} {
			_, rest, ok := strings.Cut(string(text), field+":")
			value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			kilobytes, err := strconv.ParseInt(value, 10, 64)
			if !ok || err != nil {
				s.t.Fatalf("no %s of process %d: %v", field, pid, err)
			}
			found[of] = kilobytes << 10
		}
	}
	return found
}

const (
	// withFiles marks what is resident with mapped files.
	withFiles = " with files"
	// together is what is judged; the parts are told beside it.
	together = "mend and containerd"
)

func (s *soak) sample() {
	sum := int64(0)
	for name, bytes := range s.memory() {
		s.samples[name] = append(s.samples[name], bytes)
		if !strings.HasSuffix(name, withFiles) {
			sum += bytes
		}
	}
	s.samples[together] = append(s.samples[together], sum)
}

// judgeMemory compares the medians of the first and the last fifth of the samples.
func (s *soak) judgeMemory(lasts time.Duration) {
	s.t.Helper()
	for name, all := range s.samples {
		fifth := max(len(all)/5, 1)
		first, last := medianOf(all[:fifth]), medianOf(all[len(all)-fifth:])
		growth := 100 * float64(last-first) / float64(first)
		s.t.Logf("memory of %s: %d MiB, then %d MiB: %+.1f %% in %d samples", name, first>>20, last>>20, growth, len(all))
		if lasts >= judgedFrom && growth > growthMost && name == together {
			s.t.Errorf("the memory of %s grew by %.1f %%, more than %d %%", name, growth, growthMost)
		}
	}
}

func medianOf(all []int64) int64 { return slices.Sorted(slices.Values(all))[len(all)/2] }
