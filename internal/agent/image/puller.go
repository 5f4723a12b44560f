package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
	"k8s.io/utils/clock"

	"mend/internal/agent/podspec"
)

// Reasons a container waits for its image.
const (
	ReasonPull        = "ErrImagePull"
	ReasonBackOff     = "ImagePullBackOff"
	ReasonNeverPull   = "ErrImageNeverPull"
	ReasonInvalidName = "InvalidImageName"
	ReasonInspect     = "ImageInspectError"
)

// Error is why an image is not there: Reason for the container's waiting state,
// Message its text, Event the message of the event.
type Error struct{ Reason, Message, Event string }

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Outcome is an image that is there. Pulled says that this call fetched it, in
// Took (Total including the wait for another pull).
type Outcome struct {
	podspec.Image
	Pulled bool
	Size   uint64 // bytes
	Took   time.Duration
	Total  time.Duration
}

// Request is what a container needs.
type Request struct {
	Image    string // as the Pod writes it
	Policy   v1.PullPolicy
	Secrets  []*v1.Secret
	Sandbox  *runtimeapi.PodSandboxConfig
	Notes    map[string]string // the Pod's annotations
	OnPull   func()            // called before a pull begins; may be nil
	PullTime time.Duration     // limit of one pull
}

// Puller works on the node's images. It is safe for concurrent use.
type Puller struct {
	images cri.ImageManagerService
	clock  clock.PassiveClock
	mu     sync.Mutex
	known  map[string]podspec.Image // by full name
	locks  map[string]*lock
}

type lock struct {
	slot chan struct{} // holds one token while free
	uses int
}

// NewPuller works through images.
func NewPuller(images cri.ImageManagerService, c clock.PassiveClock) *Puller {
	return &Puller{images: images, clock: c, known: map[string]podspec.Image{}, locks: map[string]*lock{}}
}

// Ensure makes the image present and blocks until it is, until it cannot be
// (*[Error]) or until ctx ends.
func (p *Puller) Ensure(ctx context.Context, req Request) (Outcome, error) {
	name, err := Parse(req.Image)
	if err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: %v", req.Image, err)
		return Outcome{}, &Error{Reason: ReasonInvalidName, Message: msg, Event: msg}
	}
	if req.Policy != v1.PullAlways {
		out, err := p.present(ctx, name.Full, req.Image)
		if err != nil || out.Ref != "" {
			return out, err
		}
		if req.Policy == v1.PullNever {
			msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", req.Image)
			return Outcome{}, &Error{Reason: ReasonNeverPull, Message: msg, Event: msg}
		}
	}
	return p.pull(ctx, name, req)
}

// present returns an empty Ref where the image is not there.
func (p *Puller) present(ctx context.Context, full, written string) (Outcome, error) {
	p.mu.Lock()
	known, ok := p.known[full]
	p.mu.Unlock()
	if ok {
		return Outcome{Image: known}, nil
	}
	resp, err := p.images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: full}, false)
	if err != nil {
		msg := fmt.Sprintf("Failed to inspect image %q: %v", written, err)
		return Outcome{}, &Error{Reason: ReasonInspect, Message: msg, Event: msg}
	}
	if resp.GetImage() == nil {
		return Outcome{}, nil
	}
	return Outcome{Image: p.remember(full, resp.Image), Size: resp.Image.Size}, nil
}

func (p *Puller) remember(full string, img *runtimeapi.Image) podspec.Image {
	known := podspec.Image{Ref: img.Id, Username: img.Username}
	switch {
	case img.Uid != nil:
		known.UID, known.Username = &img.Uid.Value, ""
	case img.Username == "":
		known.UID = new(int64) // an image that names nobody runs as root
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[full] = known
	return known
}

// Forget drops what is remembered of one image, as the Pod writes it.
func (p *Puller) Forget(image string) {
	if name, err := Parse(image); err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.known, name.Full)
	}
}

// ForgetAll drops everything remembered.
func (p *Puller) ForgetAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.known)
}

func (p *Puller) pull(ctx context.Context, name Name, req Request) (Outcome, error) {
	begin := p.clock.Now()
	release, waited, err := p.acquire(ctx, name.Full)
	if err != nil {
		return Outcome{}, err
	}
	defer release()
	if waited && req.Policy != v1.PullAlways {
		if out, err := p.present(ctx, name.Full, req.Image); err != nil || out.Ref != "" {
			return out, err
		}
	}
	if req.OnPull != nil {
		req.OnPull()
	}
	ring, err := NewKeyring(req.Secrets)
	if err != nil {
		return Outcome{}, pullError(req.Image, err)
	}
	started := p.clock.Now()
	if err := p.fetch(ctx, name, ring, req); err != nil {
		return Outcome{}, err
	}
	took := p.clock.Since(started)
	p.Forget(name.Full)
	out, err := p.present(ctx, name.Full, req.Image)
	if err != nil {
		return Outcome{}, err
	}
	if out.Ref == "" {
		return Outcome{}, pullError(req.Image, errors.New("the image is not there after a pull that succeeded"))
	}
	out.Pulled, out.Took, out.Total = true, took, p.clock.Since(begin)
	return out, nil
}

// fetch tries each credential, or none if there is none.
func (p *Puller) fetch(ctx context.Context, name Name, ring Keyring, req Request) error {
	if req.PullTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.PullTime)
		defer cancel()
	}
	auths := ring.Lookup(name.Repository)
	if len(auths) == 0 {
		auths = append(auths, nil)
	}
	spec := &runtimeapi.ImageSpec{Image: name.Full, Annotations: maps.Clone(req.Notes)}
	var problems []error
	for _, auth := range auths {
		_, err := p.images.PullImage(ctx, spec, auth, req.Sandbox)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
			return ctx.Err()
		}
		problems = append(problems, err)
	}
	if len(problems) == 1 {
		return pullError(req.Image, problems[0])
	}
	return pullError(req.Image, errors.Join(problems...))
}

// pullError reads the two errors that CRI gives names to.
func pullError(image string, err error) *Error {
	e := &Error{Reason: ReasonPull, Message: err.Error(), Event: fmt.Sprintf("Failed to pull image %q: %v", image, err)}
	for _, named := range []struct {
		err error
		why string
	}{
		{crierrors.ErrRegistryUnavailable, "the registry is unavailable"},
		{crierrors.ErrSignatureValidationFailed, "the signature validation failed"},
	} {
		if rest, ok := strings.CutPrefix(err.Error(), named.err.Error()); ok {
			e.Reason = named.err.Error()
			e.Message = fmt.Sprintf("image pull failed for %s because %s%s", image, named.why, rest)
		}
	}
	return e
}

// acquire takes the right to pull an image; waited says that somebody else had it.
func (p *Puller) acquire(ctx context.Context, full string) (release func(), waited bool, err error) {
	p.mu.Lock()
	l := p.locks[full]
	if l == nil {
		l = &lock{slot: make(chan struct{}, 1)}
		l.slot <- struct{}{}
		p.locks[full] = l
	}
	l.uses++
	waited = l.uses > 1
	p.mu.Unlock()
	done := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if l.uses--; l.uses == 0 {
			delete(p.locks, full)
		}
	}
	select {
	case <-l.slot:
		return func() { l.slot <- struct{}{}; done() }, waited, nil
	case <-ctx.Done():
		done()
		return nil, waited, ctx.Err()
	}
}
