package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

func TestParse(t *testing.T) {
	for image, want := range map[string]Name{
		"nginx":                       {"nginx:latest", "docker.io/library/nginx"},
		"nginx:1.25":                  {"nginx:1.25", "docker.io/library/nginx"},
		"myrepo/web:1.0":              {"myrepo/web:1.0", "docker.io/myrepo/web"},
		"localhost:5000/x":            {"localhost:5000/x:latest", "localhost:5000/x"},
		"r.example.com/a/b@" + digest: {"r.example.com/a/b@" + digest, "r.example.com/a/b"},
	} {
		if got, err := Parse(image); err != nil || got != want {
			t.Errorf("%s: %+v, %v", image, got, err)
		}
	}
	for _, image := range []string{"", "UPPER", "a:b:c", "nginx:"} {
		if got, err := Parse(image); err == nil {
			t.Errorf("%q gives %+v", image, got)
		}
	}
}

const digest = "sha256:0123456789012345678901234567890123456789012345678901234567890123"

func secret(entries map[string]string) *v1.Secret {
	var parts []string
	for registry, userPassword := range entries {
		parts = append(parts, fmt.Sprintf("%q:{\"auth\":%q}", registry, base64.StdEncoding.EncodeToString([]byte(userPassword))))
	}
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{` + strings.Join(parts, ",") + `}}`)}}
}

func TestKeyring(t *testing.T) {
	ring, err := NewKeyring([]*v1.Secret{secret(map[string]string{
		"https://index.docker.io/v1/": "hub:1", "r.example.com": "host:2", "r.example.com/team": "team:3",
		"*.glob.org": "glob:4", "r.example.com:5000": "port:5",
	})})
	if err != nil {
		t.Fatal(err)
	}
	for repository, want := range map[string]string{
		"docker.io/library/nginx":   "hub",
		"r.example.com/other/x":     "host",
		"r.example.com/team/x":      "team host",
		"r.example.com:5000/team/x": "port",
		"eu.glob.org/x":             "glob",
		"a.eu.glob.org/x":           "",
		"other.org/x":               "",
	} {
		var users []string
		for _, auth := range ring.Lookup(repository) {
			users = append(users, auth.Username)
		}
		if got := strings.Join(users, " "); got != want {
			t.Errorf("%s: %q, want %q", repository, got, want)
		}
	}
	if auth := ring.Lookup("docker.io/library/nginx")[0]; auth.Password != "1" {
		t.Errorf("password %q", auth.Password)
	}
	broken := secret(nil)
	broken.Data[v1.DockerConfigJsonKey] = []byte(`{"auths":{"x":{"auth":"no colon"}}}`)
	if _, err := NewKeyring([]*v1.Secret{broken}); err == nil || !strings.Contains(err.Error(), "secret ns/s: registry x: ") {
		t.Errorf("a broken secret: %v", err)
	}
}

// store is an image service: images that are there, and what pulls do.
type store struct {
	cri.ImageManagerService
	mu    sync.Mutex
	there map[string]*runtimeapi.Image
	pull  func(image string, auth *runtimeapi.AuthConfig) error
	pulls []string
	looks int
}

func (s *store) ImageStatus(_ context.Context, spec *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return &runtimeapi.ImageStatusResponse{Image: s.there[spec.Image]}, nil
}

func (s *store) PullImage(_ context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	s.mu.Lock()
	s.pulls = append(s.pulls, spec.Image+" as "+auth.GetUsername())
	s.mu.Unlock()
	if s.pull != nil {
		if err := s.pull(spec.Image, auth); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there[spec.Image] = &runtimeapi.Image{Id: "id of " + spec.Image, Size: 7, Username: "www"}
	return "ref", nil
}

func newStore(names ...string) *store {
	s := &store{there: map[string]*runtimeapi.Image{}}
	for _, n := range names {
		s.there[n] = &runtimeapi.Image{Id: "id of " + n, Uid: &runtimeapi.Int64Value{Value: 5}}
	}
	return s
}

func TestEnsure(t *testing.T) {
	ctx := context.Background()
	s := newStore("here:latest")
	p := NewPuller(s, clock.RealClock{})
	for range 2 {
		out, err := p.Ensure(ctx, Request{Image: "here", Policy: v1.PullIfNotPresent})
		if err != nil || out.Ref != "id of here:latest" || *out.UID != 5 || out.Pulled {
			t.Errorf("%+v, %v", out, err)
		}
	}
	if s.looks != 1 {
		t.Errorf("looked %d times", s.looks)
	}
	p.Forget("here")
	if _, err := p.Ensure(ctx, Request{Image: "here", Policy: v1.PullNever}); err != nil || s.looks != 2 {
		t.Errorf("after forgetting: %v, %d looks", err, s.looks)
	}
}

func TestEnsurePullsAlways(t *testing.T) {
	ctx, s := context.Background(), newStore("here:latest")
	p := NewPuller(s, clock.RealClock{})
	told := 0
	out, err := p.Ensure(ctx, Request{Image: "here", Policy: v1.PullAlways, OnPull: func() { told++ }})
	if err != nil || !out.Pulled || out.Size != 7 || out.Username != "www" || out.UID != nil || told != 1 || len(s.pulls) != 1 {
		t.Errorf("%+v, %v, %v", out, err, s.pulls)
	}
}

func TestEnsureSaysWhyNot(t *testing.T) {
	refuse := func(text string) func(string, *runtimeapi.AuthConfig) error {
		return func(string, *runtimeapi.AuthConfig) error { return grpcstatus.Error(codes.NotFound, text) }
	}
	named := func(err error) func(string, *runtimeapi.AuthConfig) error {
		return func(string, *runtimeapi.AuthConfig) error { return err }
	}
	cases := []struct {
		image  string
		policy v1.PullPolicy
		pull   func(string, *runtimeapi.AuthConfig) error
		want   Error
	}{
		{"A b", v1.PullAlways, nil, Error{ReasonInvalidName,
			`Failed to apply default image tag "A b": couldn't parse image name "A b": invalid reference format: repository name (library/A b) must be lowercase`,
			`Failed to apply default image tag "A b": couldn't parse image name "A b": invalid reference format: repository name (library/A b) must be lowercase`}},
		{"x", v1.PullNever, nil, Error{ReasonNeverPull, `Container image "x" is not present with pull policy of Never`, `Container image "x" is not present with pull policy of Never`}},
		{"x", v1.PullIfNotPresent, refuse("no such image"), Error{ReasonPull, "rpc error: code = NotFound desc = no such image",
			`Failed to pull image "x": rpc error: code = NotFound desc = no such image`}},
		{"x", v1.PullIfNotPresent, named(errors.New("RegistryUnavailable: gone away")), Error{"RegistryUnavailable",
			"image pull failed for x because the registry is unavailable: gone away", `Failed to pull image "x": RegistryUnavailable: gone away`}},
	}
	for _, c := range cases {
		s := newStore()
		s.pull = c.pull
		_, err := NewPuller(s, clock.RealClock{}).Ensure(context.Background(), Request{Image: c.image, Policy: c.policy})
		var got *Error
		if !errors.As(err, &got) || *got != c.want {
			t.Errorf("%s: got %#v, want %#v", c.image, err, c.want)
		}
	}
}

func TestCredentialsAreTriedInOrder(t *testing.T) {
	s := newStore()
	s.pull = func(_ string, auth *runtimeapi.AuthConfig) error {
		if auth.GetUsername() != "host" {
			return errors.New("denied")
		}
		return nil
	}
	_, err := NewPuller(s, clock.RealClock{}).Ensure(context.Background(), Request{Image: "r.example.com/team/x:1", Policy: v1.PullAlways,
		Secrets: []*v1.Secret{secret(map[string]string{"r.example.com": "host:2", "r.example.com/team": "team:3"})}})
	if err != nil || strings.Join(s.pulls, ", ") != "r.example.com/team/x:1 as team, r.example.com/team/x:1 as host" {
		t.Errorf("%v, %v", s.pulls, err)
	}
}

func TestOneImageIsPulledOnceAtATime(t *testing.T) {
	s := newStore()
	begun, go_ := make(chan struct{}), make(chan struct{})
	s.pull = func(string, *runtimeapi.AuthConfig) error { close(begun); <-go_; return nil }
	p := NewPuller(s, clock.RealClock{})
	ask := func() error {
		_, err := p.Ensure(context.Background(), Request{Image: "x", Policy: v1.PullIfNotPresent})
		return err
	}
	results := make(chan error, 3)
	go func() { results <- ask() }()
	<-begun
	for range 2 {
		go func() { results <- ask() }()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Ensure(ctx, Request{Image: "x", Policy: v1.PullIfNotPresent}); !errors.Is(err, context.Canceled) {
		t.Errorf("one that gave up: %v", err)
	}
	close(go_)
	for range 3 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if len(s.pulls) != 1 || len(p.locks) != 0 {
		t.Errorf("pulls %v, locks %v", s.pulls, p.locks)
	}
}
