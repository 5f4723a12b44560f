package image

import (
	"fmt"

	"github.com/distribution/reference"
)

// Name is a container's image as pulled. Full carries a tag or digest; Repository
// is the full name of where it lives ("docker.io/library/nginx").
type Name struct {
	Full       string
	Repository string
}

// Parse reads a container's image and adds ":latest" where neither tag nor digest
// is given. Short names stay short: which registry they mean is for the runtime
// to say.
func Parse(image string) (Name, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return Name{}, fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	name := Name{Full: image, Repository: named.Name()}
	_, tagged := named.(reference.Tagged)
	_, digested := named.(reference.Digested)
	if !tagged && !digested {
		name.Full = image + ":latest"
	}
	return name, nil
}
