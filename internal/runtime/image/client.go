package image

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// namespace is containerd's namespace of everything that CRI sees.
const namespace = "k8s.io"

// Labels on images.
const (
	pinnedLabel = "io.cri-containerd.pinned"
	pinnedValue = "pinned"
	// bundleLabel marks the images that mend carries with the bundle they came from.
	bundleLabel = "mend.local/bundle"
)

// ErrNotFound says that there is no image of a name.
var ErrNotFound = errors.New("no such image")

// Image is a name and what it stands for.
type Image struct {
	// Name is complete, as docker.io/library/nginx:1.25.
	Name string
	// Digest is that of the manifest or index, as sha256:….
	Digest string
	// Created is when the name was first given.
	Created time.Time
	Pinned  bool
	// StandIn says that it is the sample image under another's name.
	StandIn bool
}

// Client is a connection to containerd. Its methods may be called concurrently.
type Client struct {
	conn     *grpc.ClientConn
	images   imagesapi.ImagesClient
	content  contentapi.ContentClient
	leases   leasesapi.LeasesClient
	stream   streamingapi.StreamingClient
	transfer transferapi.TransferClient
	cri      runtimeapi.ImageServiceClient
}

// Connect prepares a connection to the containerd behind a unix:///path endpoint. It
// does not wait for it.
func Connect(endpoint string) (*Client, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd: %w", err)
	}
	return &Client{
		conn:     conn,
		images:   imagesapi.NewImagesClient(conn),
		content:  contentapi.NewContentClient(conn),
		leases:   leasesapi.NewLeasesClient(conn),
		stream:   streamingapi.NewStreamingClient(conn),
		transfer: transferapi.NewTransferClient(conn),
		cri:      runtimeapi.NewImageServiceClient(conn),
	}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// inNamespace names CRI's namespace to containerd's services.
func inNamespace(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
}

// List returns every image name, sorted, without CRI's own references by digest.
func (c *Client) List(ctx context.Context) ([]Image, error) {
	r, err := c.images.List(inNamespace(ctx), &imagesapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	standIns := c.standInDigests(ctx, r.GetImages())
	var all []Image
	for _, i := range r.GetImages() {
		if strings.HasPrefix(i.GetName(), "sha256:") {
			continue
		}
		image := toImage(i)
		image.StandIn = standIns[image.Digest] && !isBuiltin(image.Name)
		all = append(all, image)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, nil
}

func toImage(i *imagesapi.Image) Image {
	return Image{
		Name:    i.GetName(),
		Digest:  i.GetTarget().GetDigest(),
		Created: i.GetCreatedAt().AsTime(),
		Pinned:  i.GetLabels()[pinnedLabel] == pinnedValue,
	}
}

// get returns ErrNotFound when there is no image of the complete name.
func (c *Client) get(ctx context.Context, name string) (*imagesapi.Image, error) {
	r, err := c.images.Get(inNamespace(ctx), &imagesapi.GetImageRequest{Name: name})
	if status.Code(err) == codes.NotFound {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	if err != nil {
		return nil, fmt.Errorf("look up image %s: %w", name, err)
	}
	return r.GetImage(), nil
}

// Remove takes a name away; content that no name needs any more is collected. Short
// names are completed (nginx → docker.io/library/nginx:latest). It returns an error
// that wraps ErrNotFound when there is no such image.
func (c *Client) Remove(ctx context.Context, name string) error {
	full, err := Complete(name)
	if err != nil {
		return err
	}
	if _, err := c.get(ctx, full); err != nil {
		return err
	}
	// Sync waits for the collection, so that the disk space is free on return.
	_, err = c.images.Delete(inNamespace(ctx), &imagesapi.DeleteImageRequest{Name: full, Sync: true})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("remove image %s: %w", full, err)
	}
	return nil
}

// tag gives an existing image a further name, replacing what the name meant before.
func (c *Client) tag(ctx context.Context, from *imagesapi.Image, name string, labels map[string]string) error {
	image := &imagesapi.Image{Name: name, Target: from.GetTarget(), Labels: labels}
	_, err := c.images.Create(inNamespace(ctx), &imagesapi.CreateImageRequest{Image: image})
	if status.Code(err) == codes.AlreadyExists {
		_, err = c.images.Update(inNamespace(ctx), &imagesapi.UpdateImageRequest{Image: image})
	}
	if err != nil {
		return fmt.Errorf("name image %s: %w", name, err)
	}
	return nil
}

// awaitCRI waits until CRI, which learns of images through events, knows them all.
func (c *Client) awaitCRI(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, name := range names {
		for {
			r, err := c.cri.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			if err != nil {
				return fmt.Errorf("wait for CRI to know image %s: %w", name, err)
			}
			if r.GetImage() != nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("CRI does not know image %s: %w", name, ctx.Err())
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	return nil
}
