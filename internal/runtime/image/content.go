package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxManifest bounds what is read as a manifest or a configuration.
const maxManifest = 4 << 20

// copyBlob writes a blob's content to w.
func (c *Client) copyBlob(ctx context.Context, w io.Writer, blob string) error {
	stream, err := c.content.Read(inNamespace(ctx), &contentapi.ReadContentRequest{Digest: blob})
	if err != nil {
		return fmt.Errorf("read content %s: %w", blob, err)
	}
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if status.Code(err) == codes.NotFound {
			return fmt.Errorf("%w: content %s", ErrNotFound, blob)
		}
		if err != nil {
			return fmt.Errorf("read content %s: %w", blob, err)
		}
		if _, err := w.Write(chunk.GetData()); err != nil {
			return err
		}
	}
}

func (c *Client) readJSON(ctx context.Context, blob string, size int64, into any) error {
	if size > maxManifest {
		return fmt.Errorf("content %s is too large for a manifest: %d bytes", blob, size)
	}
	var buf bytes.Buffer
	if err := c.copyBlob(ctx, &buf, blob); err != nil {
		return err
	}
	if err := json.Unmarshal(buf.Bytes(), into); err != nil {
		return fmt.Errorf("read content %s: %w", blob, err)
	}
	return nil
}

// manifest reads an image's manifest; an index, which may hold many, is none.
func (c *Client) manifest(ctx context.Context, target *types.Descriptor) (ocispec.Manifest, error) {
	var m ocispec.Manifest
	if err := c.readJSON(ctx, target.GetDigest(), target.GetSize(), &m); err != nil {
		return m, err
	}
	if m.Config.Digest == "" {
		return m, fmt.Errorf("content %s is no image manifest", target.GetDigest())
	}
	return m, nil
}

// config reads the configuration of an image.
func (c *Client) config(ctx context.Context, target *types.Descriptor) (ocispec.Image, error) {
	var image ocispec.Image
	m, err := c.manifest(ctx, target)
	if err == nil {
		err = c.readJSON(ctx, m.Config.Digest.String(), m.Config.Size, &image)
	}
	return image, err
}

func toOCI(mediaType, d string, size int64) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.Digest(d), Size: size}
}
