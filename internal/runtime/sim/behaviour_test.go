package sim

import (
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

func TestWrongBehaviourIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		"rules: [{imag: x}]":                       `unknown field "rules[0].imag"`,
		"rules: [{pull: {code: NoSuch}}]":          `rules[0].pull.code: unknown grpc code "NoSuch"`,
		"sandbox: {delay: fast}":                   "invalid duration",
		"rules: {}":                                "cannot unmarshal object",
		"rules: [{listen: {ports: [\"eighty\"]}}]": "cannot unmarshal string",
	} {
		if _, err := ParseBehaviour([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
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
