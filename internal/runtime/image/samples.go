package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
)

// markerName is the file below the registries' folder that says that samples are on.
const markerName = ".samples"

// hostsFile is where containerd looks for docker.io's mirrors.
func hostsFile(registryDir string) string {
	return filepath.Join(registryDir, "docker.io", "hosts.toml")
}

// SamplesEnabled reports whether samples are on. registryDir is
// containerd.Config.RegistryDir.
func SamplesEnabled(registryDir string) bool {
	_, err := os.Stat(filepath.Join(registryDir, markerName))
	return err == nil
}

// EnableSamples gives the sample image the tutorials' names and switches the loopback
// mirror on, which the running mend (Mirror) starts when it sees the switch. It returns
// the names, sorted; a name that stands for a real image is left alone and not
// returned. It waits until the mirror serves, for at most ten seconds.
func (c *Client) EnableSamples(ctx context.Context, registryDir string) ([]string, error) {
	names, err := c.addSamples(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(registryDir, markerName), nil, 0o600); err != nil {
		return nil, fmt.Errorf("switch the samples on: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		if _, err := os.Stat(hostsFile(registryDir)); err == nil {
			return names, nil
		}
		select {
		case <-ctx.Done():
			return names, errors.New("the running mend does not start the mirror for the samples; it does at the next start")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// DisableSamples switches the mirror off and takes the stand-ins' names away. It
// returns them, sorted.
func (c *Client) DisableSamples(ctx context.Context, registryDir string) ([]string, error) {
	err := os.Remove(filepath.Join(registryDir, markerName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("switch the samples off: %w", err)
	}
	all, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, i := range all {
		if !i.StandIn || !isSampleName(i.Name) {
			continue
		}
		if err := c.Remove(ctx, i.Name); err != nil && !errors.Is(err, ErrNotFound) {
			return removed, err
		}
		removed = append(removed, i.Name)
	}
	return removed, nil
}

// isSampleName is also true for the name by digest that CRI gives at a pull
// (docker.io/library/nginx@sha256:…).
func isSampleName(name string) bool {
	repository, _, byDigest := strings.Cut(name, "@")
	for sample := range Samples {
		if name == sample || byDigest && strings.HasPrefix(sample, repository+":") {
			return true
		}
	}
	return false
}

// addSamples names the sample image as the tutorials do.
func (c *Client) addSamples(ctx context.Context) ([]string, error) {
	var added []string
	for name, from := range Samples {
		there, err := c.get(ctx, name)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		if err == nil && !c.standInDigests(ctx, []*imagesapi.Image{there})[there.GetTarget().GetDigest()] {
			continue
		}
		image, err := c.get(ctx, from)
		if err != nil {
			return nil, err
		}
		if err := c.tag(ctx, image, name, map[string]string{pinnedLabel: pinnedValue}); err != nil {
			return nil, err
		}
		added = append(added, name)
	}
	sort.Strings(added)
	return added, c.awaitCRI(ctx, added)
}

// sampleTitle is what the sample image's own configuration calls it. It tells a
// stand-in from a real image: labels on the name do not, since a pull replaces them.
const sampleTitle = "mend sample web server"

// standInDigests finds which of the images' manifests are the sample image's, of this
// mend's or an earlier one's.
func (c *Client) standInDigests(ctx context.Context, images []*imagesapi.Image) map[string]bool {
	found := map[string]bool{}
	for _, i := range images {
		digest := i.GetTarget().GetDigest()
		if _, done := found[digest]; done {
			continue
		}
		config, err := c.config(ctx, i.GetTarget())
		// One that cannot be read (content of another platform) is not the sample.
		found[digest] = err == nil && config.Config.Labels["org.opencontainers.image.title"] == sampleTitle
	}
	return found
}
