package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Import reads an archive (docker save, or an OCI layout in a tar file; gzip or zstd
// around it is fine), unpacks its images of this machine's platform and returns the
// names that it gave, once CRI knows them. Names that exist are replaced. An archive
// without names gives mend.local/imported@sha256:…. The images are pinned.
func (c *Client) Import(ctx context.Context, archive io.Reader) ([]string, error) {
	saved, err := c.importArchive(ctx, archive, &transfertypes.ImageStore{
		Labels: map[string]string{pinnedLabel: pinnedValue},
		ExtraReferences: []*transfertypes.ImageReference{{
			Name: nameless, IsPrefix: true, AllowOverwrite: true, AddDigest: true, SkipNamedDigest: true,
		}},
	})
	if err != nil {
		return nil, err
	}
	return c.keepUseful(ctx, saved)
}

// ErrEmptyArchive says that an archive has no image for this machine.
var ErrEmptyArchive = errors.New("the archive has no image for this machine's platform (" + runtime.GOOS + "/" + runtime.GOARCH + ")")

// importArchive imports as store says, for this machine's platform, and returns every
// name that containerd gave, once CRI knows them.
func (c *Client) importArchive(ctx context.Context, archive io.Reader, store *transfertypes.ImageStore) ([]string, error) {
	platform := &types.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}
	store.Platforms = []*types.Platform{platform}
	store.Unpacks = []*transfertypes.UnpackConfiguration{{Platform: platform}}

	ctx, cancel := context.WithCancel(inNamespace(ctx))
	defer cancel()
	ctx, release, err := c.lease(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	upload, err := c.openStream(ctx, "import")
	if err != nil {
		return nil, err
	}
	progress, err := c.openStream(ctx, "progress")
	if err != nil {
		return nil, err
	}
	sent := make(chan error, 1)
	go func() { sent <- upload.send(ctx, archive) }()
	saved := make(chan []string, 1)
	go func() { saved <- progress.savedNames() }()

	source, err := pack(&transfertypes.ImageImportStream{Stream: upload.id})
	if err != nil {
		return nil, err
	}
	destination, err := pack(store)
	if err != nil {
		return nil, err
	}
	_, err = c.transfer.Transfer(ctx, &transferapi.TransferRequest{
		Source: source, Destination: destination,
		Options: &transferapi.TransferOptions{ProgressStream: progress.id},
	})
	if err != nil {
		cancel()
		return nil, importError(err, <-sent)
	}
	names := <-saved
	return names, c.awaitCRI(ctx, names)
}

// leaseTime is how long containerd keeps what an import that was killed has left.
const leaseTime = time.Hour

// lease keeps containerd's garbage collection from what the calls with the returned
// context make: without it, even the side channels of a transfer are collected.
func (c *Client) lease(ctx context.Context) (_ context.Context, release func(), err error) {
	r, err := c.leases.Create(ctx, &leasesapi.CreateRequest{Labels: map[string]string{
		"containerd.io/gc.expire": time.Now().Add(leaseTime).UTC().Format(time.RFC3339),
	}, ID: "mend-import-" + rand.Text()})
	if err != nil {
		return nil, nil, fmt.Errorf("take a lease for the import: %w", err)
	}
	id := r.GetLease().GetID()
	release = func() {
		// The import may have ended because its context did; the lease goes anyway, and
		// by itself when containerd does not answer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, _ = c.leases.Delete(ctx, &leasesapi.DeleteRequest{ID: id})
	}
	return metadata.AppendToOutgoingContext(ctx, "containerd-lease", id), release, nil
}

// nameless is the repository of images that came without a name.
const nameless = "mend.local/imported"

// keepUseful drops the names by digest that containerd gives besides the archive's own:
// always to the archive's index, which comes first, and to an image without a name. CRI
// knows them by now; before, it could put a name back that it is just learning.
func (c *Client) keepUseful(ctx context.Context, saved []string) ([]string, error) {
	var named, byDigest []string
	for _, n := range saved {
		if strings.HasPrefix(n, nameless+"@") {
			byDigest = append(byDigest, n)
		} else {
			named = append(named, n)
		}
	}
	drop, keep := byDigest, named
	if len(named) == 0 && len(byDigest) > 1 {
		drop, keep = byDigest[:1], byDigest[1:]
	}
	for _, n := range drop {
		if _, err := c.images.Delete(inNamespace(ctx), &imagesapi.DeleteImageRequest{Name: n}); err != nil && status.Code(err) != codes.NotFound {
			return nil, fmt.Errorf("drop the name of the archive's index: %w", err)
		}
	}
	if len(keep) == 0 {
		return nil, ErrEmptyArchive
	}
	return keep, nil
}

// importError prefers what went wrong on our side: containerd then only sees a stream
// that ended early.
func importError(err, sendErr error) error {
	if sendErr != nil && !errors.Is(sendErr, io.EOF) && !errors.Is(sendErr, context.Canceled) && status.Code(sendErr) != codes.Canceled {
		return fmt.Errorf("read the archive: %w", sendErr)
	}
	message := status.Convert(err).Message()
	if strings.Contains(message, "filtered out") {
		return ErrEmptyArchive
	}
	return fmt.Errorf("import the archive: %s", message)
}

// stream is one of containerd's side channels, which carry a transfer's data.
type stream struct {
	id     string
	mu     sync.Mutex // sends
	client streamingapi.Streaming_StreamClient
}

// openStream opens a side channel and waits until containerd has taken it.
func (c *Client) openStream(ctx context.Context, kind string) (*stream, error) {
	s := &stream{id: kind + "-" + rand.Text()}
	var err error
	if s.client, err = c.stream.Stream(ctx); err != nil {
		return nil, fmt.Errorf("open a stream to containerd: %w", err)
	}
	if err := s.put(&streamingapi.StreamInit{ID: s.id}); err != nil {
		return nil, fmt.Errorf("open a stream to containerd: %w", err)
	}
	if _, err := s.client.Recv(); err != nil {
		return nil, fmt.Errorf("open a stream to containerd: %w", err)
	}
	return s, nil
}

func (s *stream) put(m proto.Message) error {
	a, err := pack(m)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client.Send(a)
}

// pack wraps a message as containerd's typeurl does: the bare message name, without
// the usual type.googleapis.com in front.
func pack(m proto.Message) (*anypb.Any, error) {
	value, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: string(m.ProtoReflect().Descriptor().FullName()), Value: value}, nil
}

// sendChunk is what containerd takes at once.
const sendChunk = 32 << 10

// send copies a reader into the channel as far as the receiver's window allows, and
// closes the channel. It returns when all is sent, or when the channel ends.
func (s *stream) send(ctx context.Context, r io.Reader) error {
	defer s.client.CloseSend()
	window := make(chan int32)
	ended := make(chan error, 1)
	go func() { ended <- s.receiveWindow(ctx, window) }()
	buf := make([]byte, sendChunk)
	var credit int32
	for {
		for credit <= 0 {
			select {
			case n := <-window:
				credit += n
			case err := <-ended:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		n, err := r.Read(buf[:min(int32(len(buf)), credit)])
		if n > 0 {
			credit -= int32(n)
			if sendErr := s.put(&transfertypes.Data{Data: buf[:n]}); sendErr != nil {
				return sendErr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// receiveWindow passes on how much more the receiver takes.
func (s *stream) receiveWindow(ctx context.Context, window chan<- int32) error {
	for {
		a, err := s.client.Recv()
		if err != nil {
			return err
		}
		var u transfertypes.WindowUpdate
		if err := proto.Unmarshal(a.GetValue(), &u); err != nil {
			return err
		}
		select {
		case window <- u.GetUpdate():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// savedNames collects the names that an import reports, until the channel ends.
func (s *stream) savedNames() []string {
	var names []string
	for {
		a, err := s.client.Recv()
		if err != nil {
			return names
		}
		var p transfertypes.Progress
		if proto.Unmarshal(a.GetValue(), &p) == nil && p.GetEvent() == "saved" {
			names = append(names, p.GetName())
		}
	}
}
