package podspec

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Linux keeps 64 bytes for a host name, the last of them zero.
const maxHostname = 63

// Hostname is the Pod's host name and its domain ("" if it has none), as its
// /etc/hosts and the sandbox show them.
func (h Host) Hostname(pod *v1.Pod) (name, domain string, err error) {
	if override := pod.Spec.HostnameOverride; override != nil {
		if why := validation.IsDNS1123Subdomain(*override); len(why) != 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *override, strings.Join(why, ";"))
		}
		name, err = cutHostname(pod.Name, *override)
		return name, "", err
	}
	name = pod.Name
	if pod.Spec.Hostname != "" {
		if why := validation.IsDNS1123Label(pod.Spec.Hostname); len(why) != 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", pod.Spec.Hostname, strings.Join(why, ";"))
		}
		name = pod.Spec.Hostname
	}
	if name, err = cutHostname(pod.Name, name); err != nil {
		return "", "", err
	}
	if pod.Spec.Subdomain != "" {
		if why := validation.IsDNS1123Label(pod.Spec.Subdomain); len(why) != 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", pod.Spec.Subdomain, strings.Join(why, ";"))
		}
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, h.ClusterDomain)
	}
	return name, domain, nil
}

func cutHostname(podName, name string) (string, error) {
	if len(name) <= maxHostname {
		return name, nil
	}
	cut := strings.TrimRight(name[:maxHostname], "-.")
	if cut == "" {
		return "", fmt.Errorf("hostname for pod %q was invalid: %q", podName, name)
	}
	return cut, nil
}

// kernelHostname is what the sandbox's kernel says: the short name, or the full
// one where the Pod asks for it.
func (h Host) kernelHostname(pod *v1.Pod) (string, error) {
	name, domain, err := h.Hostname(pod)
	if err != nil {
		return "", err
	}
	if pod.Spec.SetHostnameAsFQDN == nil || !*pod.Spec.SetHostnameAsFQDN || domain == "" {
		return name, nil
	}
	full := name + "." + domain
	if len(full) > maxHostname+1 {
		return "", fmt.Errorf("failed to construct FQDN from Pod hostname and cluster domain, FQDN %s is too long (64 characters is the max, %d characters requested)", full, len(full))
	}
	return full, nil
}
