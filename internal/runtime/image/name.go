package image

import (
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
)

// Complete turns an image name as people write it into the one that containerd keeps:
// nginx → docker.io/library/nginx:latest.
func Complete(image string) (string, error) {
	ref, err := name.ParseReference(image, name.WeakValidation)
	if err != nil {
		return "", fmt.Errorf("image name %q: %w", image, err)
	}
	host := ref.Context().RegistryStr()
	if host == name.DefaultRegistry {
		host = "docker.io" // the library says index.docker.io
	}
	separator := ":"
	if _, ok := ref.(name.Digest); ok {
		separator = "@"
	}
	return host + "/" + ref.Context().RepositoryStr() + separator + ref.Identifier(), nil
}
