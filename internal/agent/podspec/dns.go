package podspec

import (
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of a resolver's configuration (k8s.io/kubernetes/pkg/apis/core/validation).
const (
	maxNameservers   = 3
	maxSearchPaths   = 32
	maxSearchChars   = 2048
	maxResolvConf    = 10 << 20
	clusterDNSOption = "ndots:5"
)

// Warning is an event that rendering asks for.
type Warning struct{ Reason, Message string }

// dns is the Pod's resolver configuration.
func (h Host) dns(pod *v1.Pod) (*runtimeapi.DNSConfig, []Warning, error) {
	config, err := h.hostResolver()
	if err != nil {
		return nil, nil, err
	}
	switch dnsKind(pod) {
	case v1.DNSNone:
		config = &runtimeapi.DNSConfig{}
	case v1.DNSClusterFirst:
		if len(h.ClusterDNS) > 0 {
			config.Servers = slices.Clone(h.ClusterDNS)
			config.Searches = h.clusterSearches(pod, config.Searches)
			config.Options = []string{clusterDNSOption}
			break
		}
		// Without a cluster DNS the Pod gets the host's answer. Upstream writes
		// a MissingClusterDNS warning for every Pod; ours logs it once at start.
		h.withoutResolver(config)
	case v1.DNSDefault, v1.DNSClusterFirstWithHostNet:
		h.withoutResolver(config)
	}
	if own := pod.Spec.DNSConfig; own != nil {
		config.Servers = unique(append(config.Servers, own.Nameservers...))
		config.Searches = unique(append(config.Searches, own.Searches...))
		config.Options = mergeOptions(config.Options, own.Options)
	}
	return config, fitDNSLimits(config), nil
}

// dnsKind reduces the policy to where the answer comes from: nothing, the
// cluster, or the host.
func dnsKind(pod *v1.Pod) v1.DNSPolicy {
	switch pod.Spec.DNSPolicy {
	case v1.DNSNone:
		return v1.DNSNone
	case v1.DNSDefault:
		return v1.DNSDefault
	case v1.DNSClusterFirstWithHostNet:
		return v1.DNSClusterFirst
	case v1.DNSClusterFirst:
		if pod.Spec.HostNetwork {
			return v1.DNSDefault
		}
	}
	return v1.DNSClusterFirst
}

func (h Host) clusterSearches(pod *v1.Pod, host []string) []string {
	if h.ClusterDomain == "" {
		return host
	}
	return unique(append([]string{
		pod.Namespace + ".svc." + h.ClusterDomain,
		"svc." + h.ClusterDomain,
		h.ClusterDomain,
	}, host...))
}

// withoutResolver points a Pod of a node that has no resolv.conf at itself, so
// that the runtime does not put in a resolver of its own.
func (h Host) withoutResolver(config *runtimeapi.DNSConfig) {
	if h.ResolvConf == "" {
		config.Servers, config.Searches = []string{"127.0.0.1"}, []string{"."}
	}
}

func (h Host) hostResolver() (*runtimeapi.DNSConfig, error) {
	if h.ResolvConf == "" {
		return &runtimeapi.DNSConfig{}, nil
	}
	raw, err := os.ReadFile(h.ResolvConf)
	if err != nil {
		return nil, err
	}
	if len(raw) > maxResolvConf {
		return nil, fmt.Errorf("%s is larger than %d bytes", h.ResolvConf, maxResolvConf)
	}
	return parseResolvConf(string(raw)), nil
}

// parseResolvConf keeps every nameserver, the last search line, and of options
// the last of each name.
func parseResolvConf(text string) *runtimeapi.DNSConfig {
	config := &runtimeapi.DNSConfig{}
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			config.Servers = append(config.Servers, fields[1])
		case "search":
			config.Searches = nil
			for _, s := range fields[1:] {
				if s != "." {
					config.Searches = append(config.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range fields[1:] {
				config.Options = setOption(config.Options, o)
			}
		}
	}
	return config
}

func mergeOptions(options []string, own []v1.PodDNSConfigOption) []string {
	for _, o := range own {
		option := o.Name
		if o.Value != nil && *o.Value != "" {
			option += ":" + *o.Value
		}
		options = setOption(options, option)
	}
	return options
}

// setOption replaces the option of the same name, or adds it.
func setOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	for i, o := range options {
		if have, _, _ := strings.Cut(o, ":"); have == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}

func unique(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

func fitDNSLimits(config *runtimeapi.DNSConfig) []Warning {
	var warnings []Warning
	if len(config.Servers) > maxNameservers {
		config.Servers = config.Servers[:maxNameservers]
		warnings = append(warnings, Warning{"DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " +
			strings.Join(config.Servers, " ")})
	}
	fitting := slices.DeleteFunc(slices.Clone(config.Searches), func(s string) bool {
		return len(s) > validation.DNS1123SubdomainMaxLength
	})
	if len(fitting) > maxSearchPaths {
		fitting = fitting[:maxSearchPaths]
	}
	for len(strings.Join(fitting, " ")) > maxSearchChars {
		fitting = fitting[:len(fitting)-1]
	}
	if len(fitting) < len(config.Searches) {
		config.Searches = fitting
		warnings = append(warnings, Warning{"DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " +
			strings.Join(fitting, " ")})
	}
	return warnings
}
