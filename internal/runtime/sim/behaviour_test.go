package sim

import (
	"os"
	"strings"
	"testing"
	"time"
)

const sampleBehaviour = `
seed: 7
sandbox: {delay: 75ms}
images: [registry.example.com/app:1]
rules:
- image: "nginx:*"
  ready: {delay: 5s, spread: 2s}
- image: "*:crash"
  exit: {after: 3s, code: 1}
- image: "*"
  command: "sleep *"
  stop: {ignore: false, code: 143}
`

func TestBehaviourIsReadFromYAMLAheadOfTheBuiltInRules(t *testing.T) {
	behaviour, err := ParseBehaviour([]byte(sampleBehaviour))
	if err != nil {
		t.Fatal(err)
	}
	if behaviour.Seed != 7 || behaviour.Sandbox.Delay.Duration != 75*time.Millisecond {
		t.Errorf("seed %d, sandbox %v", behaviour.Seed, behaviour.Sandbox)
	}
	if first, built := behaviour.Images[0], DefaultBehaviour().Images; first != "registry.example.com/app:1" || len(behaviour.Images) != len(built)+1 {
		t.Errorf("images %v", behaviour.Images)
	}
}

func TestRulesApplySectionBySection(t *testing.T) {
	behaviour, err := ParseBehaviour([]byte(sampleBehaviour))
	if err != nil {
		t.Fatal(err)
	}
	// One section from the file, the others still from the built-in rules.
	web := behaviour.traitsOf("nginx:1.25", "")
	if web.ready.Delay.Duration != 5*time.Second || !web.listen.Sample || web.exit != nil {
		t.Errorf("nginx: %+v", web)
	}
	if crash := behaviour.traitsOf("any:crash", ""); crash.exit == nil || crash.exit.Code != 1 || crash.exit.After.Duration != 3*time.Second {
		t.Errorf("crash: %+v", crash.exit)
	}
	if asleep := behaviour.traitsOf("busybox", "sleep 5"); asleep.stop == nil || asleep.stop.Code != 143 {
		t.Errorf("sleep: %+v", asleep.stop)
	}
	if awake := behaviour.traitsOf("busybox", "echo"); awake.stop != nil || awake.entrypoint[0] != "sh" {
		t.Errorf("echo: %+v", awake)
	}
}

func TestWrongBehaviourIsNamedInOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"rules: [{imag: x}]":                         `simulated behaviour: unknown field "rules[0].imag"`,
		"rules: [{imag: x, y: 1}]":                   `simulated behaviour: unknown field "rules[0].imag", and 1 more`,
		"rules: [{pull: {code: NoSuch}}]":            `simulated behaviour: rules[0].pull.code: unknown grpc code "NoSuch"`,
		"sandbox: {delay: fast}":                     `simulated behaviour: sandbox.delay: "fast" is no duration, such as 500ms or 1m30s`,
		"rules: [{start: {delay: fast}}]":            `simulated behaviour: rules[0].start.delay: "fast" is no duration, such as 500ms or 1m30s`,
		"sandbox: {delay: 5}":                        `simulated behaviour: sandbox.delay: 5 is no duration, such as 500ms or 1m30s`,
		"rules: [{}, {start: {spread: -1s}}]":        `simulated behaviour: rules[1].start.spread: -1s must not be negative`,
		"rules: {}":                                  `simulated behaviour: rules: want a list, not {}`,
		"rules: [{listen: {ports: [eighty]}}]":       `simulated behaviour: rules[0].listen.ports[0]: want a whole number, not "eighty"`,
		"rules: [{exit: {code: 1.5}}]":               `simulated behaviour: rules[0].exit.code: want a whole number, not 1.5`,
		"rules: [{stop: {ignore: sure}}]":            `simulated behaviour: rules[0].stop.ignore: want true or false, not "sure"`,
		"rules: [{listen: {healthStatus: 9}}]":       `simulated behaviour: rules[0].listen.healthStatus: 9 is no HTTP status`,
		"nodes: [{lost: {after: 1m, repeat: true}}]": `simulated behaviour: nodes[0].lost.repeat: needs lost.for, or the node is gone after the first time`,
		"[1, 2]":               `simulated behaviour: the file: want fields, not [1,2]`,
		"seed: 1\nseed: 2":     `simulated behaviour: yaml: unmarshal errors: line 2: key "seed" already set in map`,
		"rules:\n- image: [\n": `simulated behaviour: yaml: line 2: did not find expected node content`,
	} {
		_, err := ParseBehaviour([]byte(text))
		if err == nil || !strings.HasSuffix(err.Error(), strings.TrimPrefix(want, "simulated behaviour: ")) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s:\n got %v\nwant %s", text, err, want)
		}
	}
}

func TestNodesAreLostAsTheFileSays(t *testing.T) {
	behaviour, err := ParseBehaviour([]byte(`
seed: 3
nodes:
- name: "*-1"
  lost: {after: 1m, spread: 30s, for: 2m, power: true, repeat: true}
- name: "*-2"
  lost: {after: 10s}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := behaviour.Outage("host-0", 0); ok {
		t.Errorf("host-0 is lost: %+v", got)
	}
	first, ok := behaviour.Outage("host-1", 0)
	if !ok || first.After < time.Minute || first.After >= 90*time.Second || first.For != 2*time.Minute || !first.Power {
		t.Errorf("first outage of host-1: %+v, %v", first, ok)
	}
	if again, _ := behaviour.Outage("host-1", 0); again != first {
		t.Errorf("the same seed gave %+v and %+v", first, again)
	}
	if second, ok := behaviour.Outage("host-1", 1); !ok || second.After == first.After {
		t.Errorf("second outage of host-1: %+v, %v", second, ok)
	}
	if got, ok := behaviour.Outage("host-2", 0); !ok || got != (Outage{After: 10 * time.Second}) {
		t.Errorf("outage of host-2: %+v, %v", got, ok)
	}
	if got, ok := behaviour.Outage("host-2", 1); ok {
		t.Errorf("host-2 is lost twice: %+v", got)
	}
}

func TestGlob(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		match         bool
	}{
		{"nginx:1", "nginx:1", true}, {"nginx:1", "nginx:10", false},
		{"*", "", true}, {"nginx*", "nginx:1/x", true}, {"*nginx", "my/nginx", true},
		{"*.invalid/*", "a.invalid/b", true}, {"*.invalid/*", "a.invalid", false},
		{"a*b*c", "abc", true}, {"a*b*c", "acb", false}, {"ab*ba", "aba", false},
		{"*x*x*", "x", false}, {"*x*x*", "xx", true},
	} {
		if got := globMatch(test.pattern, test.text); got != test.match {
			t.Errorf("%q on %q = %v", test.pattern, test.text, got)
		}
	}
}

func TestTheExampleIsABehaviour(t *testing.T) {
	text, err := os.ReadFile("../../../examples/behaviour.yaml")
	if err != nil {
		t.Fatal(err)
	}
	behaviour, err := ParseBehaviour(text)
	if err != nil {
		t.Fatal(err)
	}
	if crash := behaviour.traitsOf("any:crash", ""); crash.exit == nil || crash.exit.Code != 1 {
		t.Errorf("crash: %+v", crash.exit)
	}
	if lost, ok := behaviour.Outage("host-1", 3); !ok || !lost.Power {
		t.Errorf("host-1 is lost again and again: %+v, %v", lost, ok)
	}
}
