package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
)

// Builtin are the names of the images that mend carries.
var Builtin = []string{"mend.local/pause:1", "mend.local/web:1.0", "mend.local/web:2.0"}

// Samples maps the names that the tutorials' manifests use to the image that stands in
// for them on machines without a registry.
var Samples = map[string]string{
	"docker.io/library/nginx:1.24":   "mend.local/web:1.0",
	"docker.io/library/nginx:1.25":   "mend.local/web:2.0",
	"docker.io/library/nginx:latest": "mend.local/web:1.0",
	"docker.io/library/web:2.0":      "mend.local/web:2.0",
	"docker.io/myrepo/web:1.0":       "mend.local/web:1.0",
	"docker.io/myrepo/web:2.0":       "mend.local/web:2.0",
}

// EnsureBuiltin imports the images that mend carries, unless they are there from the
// same bundle already. open gives the archive; it is called only when it is needed. It
// takes some 0.2 s the first time and a millisecond later.
func (c *Client) EnsureBuiltin(ctx context.Context, bundleID string, open func() (io.ReadCloser, error)) error {
	// A label's value may not be longer than 63 characters in what people select by.
	mark := bundleID[:min(16, len(bundleID))]
	missing := false
	for _, name := range Builtin {
		i, err := c.get(ctx, name)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		missing = missing || i.GetLabels()[bundleLabel] != mark
	}
	if !missing {
		return nil
	}
	archive, err := open()
	if err != nil {
		return fmt.Errorf("open the built-in images: %w", err)
	}
	defer archive.Close()
	_, err = c.importArchive(ctx, archive, map[string]string{pinnedLabel: pinnedValue, bundleLabel: mark})
	if err != nil {
		return fmt.Errorf("import the built-in images: %w", err)
	}
	return nil
}

// AddSamples gives the sample image the tutorials' names and returns them, sorted. A
// name that stands for a real image already is left alone and not returned.
func (c *Client) AddSamples(ctx context.Context) ([]string, error) {
	var added []string
	for name, from := range Samples {
		there, err := c.get(ctx, name)
		if err == nil && there.GetLabels()[sampleLabel] == "" {
			continue
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		image, err := c.get(ctx, from)
		if err != nil {
			return nil, err
		}
		if err := c.tag(ctx, image, name, map[string]string{pinnedLabel: pinnedValue, sampleLabel: "stand-in"}); err != nil {
			return nil, err
		}
		added = append(added, name)
	}
	sort.Strings(added)
	return added, c.awaitCRI(ctx, added)
}

// RemoveSamples takes the stand-ins' names away again and returns them.
func (c *Client) RemoveSamples(ctx context.Context) ([]string, error) {
	all, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, i := range all {
		if !i.StandIn {
			continue
		}
		if err := c.Remove(ctx, i.Name); err != nil && !errors.Is(err, ErrNotFound) {
			return removed, err
		}
		removed = append(removed, i.Name)
	}
	return removed, nil
}
