package image

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Docker Hub's credentials are kept under this host.
const hubHost = "index.docker.io"

// Keyring holds registry credentials, the most specific path first.
type Keyring struct{ keys []key }

type key struct {
	host, path string // host may hold globs per label
	auth       *runtimeapi.AuthConfig
}

type dockerConfig map[string]struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Auth     string `json:"auth"`
}

// NewKeyring reads pull secrets (kubernetes.io/dockerconfigjson and dockercfg).
// Secrets of other types are passed over.
func NewKeyring(secrets []*v1.Secret) (Keyring, error) {
	var ring Keyring
	for _, s := range secrets {
		config, err := readSecret(s)
		if err != nil {
			return Keyring{}, fmt.Errorf("secret %s/%s: %w", s.Namespace, s.Name, err)
		}
		for registry, entry := range config {
			user, password := entry.Username, entry.Password
			if entry.Auth != "" {
				if user, password, err = splitAuth(entry.Auth); err != nil {
					return Keyring{}, fmt.Errorf("secret %s/%s: registry %s: %w", s.Namespace, s.Name, registry, err)
				}
			}
			k, ok := parseRegistry(registry)
			if !ok {
				continue
			}
			k.auth = &runtimeapi.AuthConfig{Username: user, Password: password}
			ring.keys = append(ring.keys, k)
		}
	}
	slices.SortStableFunc(ring.keys, func(a, b key) int { return strings.Compare(b.host+b.path, a.host+a.path) })
	return ring, nil
}

func readSecret(s *v1.Secret) (dockerConfig, error) {
	if raw, ok := s.Data[v1.DockerConfigJsonKey]; ok && s.Type == v1.SecretTypeDockerConfigJson {
		var wrapped struct {
			Auths dockerConfig `json:"auths"`
		}
		err := json.Unmarshal(raw, &wrapped)
		return wrapped.Auths, err
	}
	if raw, ok := s.Data[v1.DockerConfigKey]; ok && s.Type == v1.SecretTypeDockercfg {
		var config dockerConfig
		err := json.Unmarshal(raw, &config)
		return config, err
	}
	return nil, nil
}

func splitAuth(encoded string) (user, password string, err error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		if raw, err = base64.RawStdEncoding.DecodeString(strings.TrimSpace(encoded)); err != nil {
			return "", "", fmt.Errorf("auth is not base64: %w", err)
		}
	}
	user, password, ok := strings.Cut(string(raw), ":")
	if !ok {
		return "", "", fmt.Errorf("auth must be user:password in base64")
	}
	return user, password, nil
}

// parseRegistry reads "registry.example.com/team", with or without a scheme;
// /v1/ and /v2/ at the start of the path mean the host as a whole.
func parseRegistry(registry string) (key, bool) {
	if !strings.Contains(registry, "://") {
		registry = "https://" + registry
	}
	u, err := url.Parse(registry)
	if err != nil || u.Host == "" {
		return key{}, false
	}
	p := u.Path
	if strings.HasPrefix(p, "/v2/") || strings.HasPrefix(p, "/v1/") {
		p = p[3:]
	}
	if p == "/" {
		p = ""
	}
	return key{host: u.Host, path: p}, true
}

// Lookup gives the credentials to try for a repository ("docker.io/library/nginx"),
// in order. None means: pull without.
func (r Keyring) Lookup(repository string) []*runtimeapi.AuthConfig {
	host, rest, _ := strings.Cut(repository, "/")
	rest = "/" + rest
	var found []*runtimeapi.AuthConfig
	for _, k := range r.keys {
		if matchHost(k.host, host) && strings.HasPrefix(rest, k.path) {
			found = append(found, k.auth)
		}
	}
	if len(found) == 0 && (host == "docker.io" || host == hubHost) {
		for _, k := range r.keys {
			if k.host == hubHost && k.path == "" {
				found = append(found, k.auth)
			}
		}
	}
	return found
}

// matchHost compares label by label, with globs: "*.example.com" matches
// "eu.example.com" and not "a.eu.example.com". Ports must be equal.
func matchHost(pattern, host string) bool {
	patternLabels, patternPort := splitHost(pattern)
	labels, port := splitHost(host)
	if patternPort != port || len(patternLabels) != len(labels) {
		return false
	}
	for i := range labels {
		if ok, err := path.Match(patternLabels[i], labels[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func splitHost(host string) (labels []string, port string) {
	if name, p, err := net.SplitHostPort(host); err == nil {
		host, port = name, p
	}
	return strings.Split(host, "."), port
}
