package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sort"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageSize is what every image claims to weigh, in bytes.
const imageSize = 4 << 20

type image struct {
	name string // full reference: docker.io/library/nginx:1.25
	id   string // sha256:…
	user string
}

// fullName is the form in which containerd keeps a reference; text that is no
// reference stays as it is.
func fullName(name string) string {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return name
	}
	return named.String()
}

func (i *image) digest() string {
	repository, _ := splitTag(i.name)
	return repository + "@" + i.id
}

// splitTag cuts a full reference into repository and tag or digest.
func splitTag(full string) (repository, tag string) {
	if at := strings.Index(full, "@"); at >= 0 {
		return full[:at], full[at+1:]
	}
	colon := strings.LastIndex(full, ":")
	if colon < 0 || colon < strings.LastIndex(full, "/") {
		return full, ""
	}
	return full[:colon], full[colon+1:]
}

// addImage makes an image present. Callers hold r.mu or own r alone.
func (r *Runtime) addImage(name string) *image {
	full := fullName(name)
	if known := r.images[full]; known != nil {
		return known
	}
	sum := sha256.Sum256([]byte(full))
	added := &image{name: full, id: "sha256:" + hex.EncodeToString(sum[:]), user: r.behaviour.traitsOf(name, "").user}
	r.images[full] = added
	return added
}

// findImage finds by reference or id. Callers hold r.mu.
func (r *Runtime) findImage(name string) *image {
	if found := r.images[fullName(name)]; found != nil {
		return found
	}
	for _, candidate := range r.images {
		if candidate.id == name || candidate.digest() == name {
			return candidate
		}
	}
	return nil
}

// PullImage takes the behaviour's pull delay and returns the image's id, or
// fails as the behaviour says.
func (r *Runtime) PullImage(ctx context.Context, spec *runtimeapi.ImageSpec, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	name := spec.GetImage()
	if _, err := reference.ParseDockerRef(name); err != nil {
		return "", status.Errorf(codes.InvalidArgument, "failed to parse image reference %q: %v", name, err)
	}
	r.mu.Lock()
	pull := r.behaviour.traitsOf(name, "").pull
	delay := pull.of(r.behaviour.Seed, "pull", name)
	r.mu.Unlock()
	if err := r.pause(ctx, delay); err != nil {
		return "", contextStatus(err)
	}
	if pull.Error != "" {
		return "", pull.failure(name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addImage(name).id, nil
}

// failure has the form in which the CRI client hands errors on: without a code
// when the runtime gave none.
func (p Pull) failure(name string) error {
	full := fullName(name)
	repository, tag := splitTag(full)
	host, path, _ := strings.Cut(repository, "/")
	message := strings.NewReplacer("{image}", full, "{host}", host, "{path}", path, "{tag}", tag).Replace(p.Error)
	code, known := grpcCode(p.Code)
	if !known || code == codes.Unknown {
		return errors.New(message)
	}
	return status.Error(code, message)
}

func grpcCode(name string) (codes.Code, bool) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if code.String() == name {
			return code, true
		}
	}
	return codes.Unknown, false
}

// ImageStatus has a nil image for one that is not present.
func (r *Runtime) ImageStatus(_ context.Context, spec *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.findImage(spec.GetImage())
	if found == nil {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	response := &runtimeapi.ImageStatusResponse{Image: found.describe()}
	if verbose {
		response.Info = verboseInfo(map[string]any{"chainID": found.id})
	}
	return response, nil
}

func (i *image) describe() *runtimeapi.Image {
	described := &runtimeapi.Image{
		Id:          i.id,
		RepoDigests: []string{i.digest()},
		Size:        imageSize,
		Spec:        &runtimeapi.ImageSpec{Image: i.name},
		Pinned:      strings.HasPrefix(i.name, "mend.local/"),
	}
	if !strings.Contains(i.name, "@") {
		described.RepoTags = []string{i.name}
	}
	if uid, err := strconv.ParseInt(i.user, 10, 64); err == nil {
		described.Uid = &runtimeapi.Int64Value{Value: uid}
	} else {
		described.Username = i.user
	}
	return described
}

// ListImages lists by name.
func (r *Runtime) ListImages(_ context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := []*runtimeapi.Image{}
	wanted := filter.GetImage().GetImage()
	for _, candidate := range r.images {
		if wanted == "" || candidate == r.findImage(wanted) {
			found = append(found, candidate.describe())
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Spec.Image < found[j].Spec.Image })
	return found, nil
}

// RemoveImage removes a reference; one that is gone is no error.
func (r *Runtime) RemoveImage(_ context.Context, spec *runtimeapi.ImageSpec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.findImage(spec.GetImage()); found != nil {
		delete(r.images, found.name)
	}
	return nil
}

// ImageFsInfo reports one empty filesystem.
func (r *Runtime) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	usage := func() []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{
			Timestamp:  r.clock.Now().UnixNano(),
			FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
			UsedBytes:  &runtimeapi.UInt64Value{},
			InodesUsed: &runtimeapi.UInt64Value{},
		}}
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage(), ContainerFilesystems: usage()}, nil
}
