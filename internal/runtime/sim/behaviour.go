package sim

import (
	_ "embed"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed behaviour.yaml
var defaultBehaviour []byte

// Behaviour says as data what simulated images and containers do. A section of
// a container's behaviour (pull, start, exit, …) is taken from the first rule
// that matches the container and has that section.
type Behaviour struct {
	// Seed makes every spread repeatable: the same seed gives the same Pod,
	// container and attempt the same delays, whatever the order of calls.
	Seed int64 `json:"seed,omitempty"`
	// Sandbox is how long RunPodSandbox takes.
	Sandbox Delay `json:"sandbox,omitempty"`
	// Images are present without a pull.
	Images []string `json:"images,omitempty"`
	Rules  []Rule   `json:"rules,omitempty"`
	// Nodes are lost and return. A runtime does not look at them: they are for
	// whoever runs the nodes.
	Nodes []NodeRule `json:"nodes,omitempty"`
}

// Rule is a row of a [Behaviour]. Image and Command are globs in which * stands
// for any characters; empty matches all. Image is tried on the reference as
// given and in its full form (docker.io/library/nginx:1.25); Command on the
// words of the container's command line joined by spaces.
type Rule struct {
	Image   string `json:"image,omitempty"`
	Command string `json:"command,omitempty"`

	Pull       *Pull      `json:"pull,omitempty"`
	Entrypoint []string   `json:"entrypoint,omitempty"` // used when the container names no command
	Start      *Start     `json:"start,omitempty"`
	Ready      *Delay     `json:"ready,omitempty"` // from start until /healthz answers 200
	Exit       *Exit      `json:"exit,omitempty"`
	Stop       *Stop      `json:"stop,omitempty"`
	Listen     *Listen    `json:"listen,omitempty"`
	Log        []string   `json:"log,omitempty"` // lines written to stdout at start
	Exec       []ExecRule `json:"exec,omitempty"`
	User       string     `json:"user,omitempty"` // the image's user, as in an image config: "1000", "nobody"
}

// Delay is a duration, and a spread of which a seeded part is added to it.
type Delay struct {
	Delay  metav1.Duration `json:"delay,omitempty"`
	Spread metav1.Duration `json:"spread,omitempty"`
}

// Pull says how a pull of an image goes. Error may use {image} (the full
// reference), {host}, {path} and {tag}; Code is a grpc code by name ("NotFound",
// "Unavailable"), default Unknown.
type Pull struct {
	Delay `json:",inline"`
	Error string `json:"error,omitempty"`
	Code  string `json:"code,omitempty"`
}

// Start says how StartContainer goes. With Error the container ends at once, as
// containerd reports it: exit code 128, reason StartError.
type Start struct {
	Delay `json:",inline"`
	Error string `json:"error,omitempty"`
}

// Exit lets a container end by itself.
type Exit struct {
	After  metav1.Duration `json:"after,omitempty"`
	Spread metav1.Duration `json:"spread,omitempty"`
	Code   int32           `json:"code,omitempty"`
	Reason string          `json:"reason,omitempty"` // default Completed or Error, by code
}

// Stop says what a container does with SIGTERM: it ends with Code after a
// delay, or ignores the signal and is killed (137) when the grace period is over.
type Stop struct {
	Delay  `json:",inline"`
	Code   int32 `json:"code,omitempty"`
	Ignore bool  `json:"ignore,omitempty"`
}

// Listen names the TCP ports on which a container answers HTTP; none means
// every port. Refuse lets it refuse all connections.
type Listen struct {
	Ports  []int32 `json:"ports,omitempty"`
	Refuse bool    `json:"refuse,omitempty"`
	// HealthStatus is what /healthz answers once the container is ready;
	// default 200. Other images than the sample answer the same on every path.
	HealthStatus int `json:"healthStatus,omitempty"`
	// Latency is added to every answer.
	Latency metav1.Duration `json:"latency,omitempty"`
	// Sample lets the container answer and obey as the sample web image does.
	Sample bool `json:"sample,omitempty"`
}

// ExecRule answers a command that is run inside a container. Rules come before
// the built-in commands (echo, cat, sh, env, …).
type ExecRule struct {
	Command string          `json:"command"` // glob over the words joined by spaces
	Stdout  string          `json:"stdout,omitempty"`
	Stderr  string          `json:"stderr,omitempty"`
	Code    int32           `json:"code,omitempty"`
	Delay   metav1.Duration `json:"delay,omitempty"`
}

// withDefaults returns b with the built-in rules behind b's own.
func (b *Behaviour) withDefaults() *Behaviour {
	built := DefaultBehaviour()
	merged := *b
	merged.Images = append(append([]string{}, b.Images...), built.Images...)
	merged.Rules = append(append([]Rule{}, b.Rules...), built.Rules...)
	return &merged
}

// WithRules returns a behaviour in which the given rules come before b's.
func (b *Behaviour) WithRules(rules ...Rule) *Behaviour {
	merged := *b
	merged.Rules = append(append([]Rule{}, rules...), b.Rules...)
	return &merged
}

// traits are the sections that apply to one container or image.
type traits struct {
	pull       Pull
	entrypoint []string
	start      Start
	ready      Delay
	exit       *Exit
	stop       *Stop
	listen     Listen
	log        []string
	exec       []ExecRule
	user       string
}

// traitsOf collects, section by section, what the first matching rule says.
func (b *Behaviour) traitsOf(image, command string) traits {
	var found traits
	full := fullName(image)
	var pull, start, ready, listen bool
	for i := range b.Rules {
		rule := &b.Rules[i]
		if !rule.matches(image, full, command) {
			continue
		}
		if rule.Pull != nil && !pull {
			found.pull, pull = *rule.Pull, true
		}
		if rule.Start != nil && !start {
			found.start, start = *rule.Start, true
		}
		if rule.Ready != nil && !ready {
			found.ready, ready = *rule.Ready, true
		}
		if rule.Listen != nil && !listen {
			found.listen, listen = *rule.Listen, true
		}
		found.adopt(rule)
	}
	return found
}

// adopt takes the sections for which "not set yet" is visible in the value.
func (t *traits) adopt(rule *Rule) {
	if t.exit == nil {
		t.exit = rule.Exit
	}
	if t.stop == nil {
		t.stop = rule.Stop
	}
	if t.entrypoint == nil {
		t.entrypoint = rule.Entrypoint
	}
	if t.log == nil {
		t.log = rule.Log
	}
	if t.user == "" {
		t.user = rule.User
	}
	t.exec = append(t.exec, rule.Exec...)
}

func (r *Rule) matches(image, full, command string) bool {
	if r.Image != "" && !globMatch(r.Image, image) && !globMatch(r.Image, full) {
		return false
	}
	return r.Command == "" || globMatch(r.Command, command)
}

// globMatch reports whether text matches a pattern in which * stands for any
// run of characters, slashes included.
func globMatch(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	if !strings.HasPrefix(text, parts[0]) {
		return false
	}
	text = text[len(parts[0]):]
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return strings.HasSuffix(text, last)
}

// of returns the delay for the thing named by parts.
func (d Delay) of(seed int64, parts ...string) time.Duration {
	return spread(seed, d.Delay.Duration, d.Spread.Duration, parts...)
}

func spread(seed int64, base, width time.Duration, parts ...string) time.Duration {
	if width <= 0 {
		return base
	}
	sum := fnv.New64a()
	for _, part := range parts {
		sum.Write([]byte(part))
		sum.Write([]byte{0})
	}
	random := rand.New(rand.NewPCG(uint64(seed), sum.Sum64()))
	return base + time.Duration(random.Int64N(int64(width)))
}
