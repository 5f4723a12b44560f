package podspec

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serviceVars are the variables that tell a container of namespace where the
// Services are: those of default/kubernetes always, those of its own namespace
// where links is true.
func serviceVars(all []*v1.Service, namespace string, links bool) map[string]string {
	chosen := map[string]*v1.Service{}
	for _, s := range all {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == v1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		master := s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes"
		own := s.Namespace == namespace && links
		// A Service "kubernetes" of the Pod's own namespace wins over default's.
		if own || (master && chosen[s.Name] == nil) {
			chosen[s.Name] = s
		}
	}
	vars := map[string]string{}
	for _, s := range chosen {
		addServiceVars(vars, s)
	}
	return vars
}

func addServiceVars(vars map[string]string, s *v1.Service) {
	prefix := envName(s.Name)
	ports := s.Spec.Ports
	vars[prefix+"_SERVICE_HOST"] = s.Spec.ClusterIP
	vars[prefix+"_SERVICE_PORT"] = strconv.Itoa(int(ports[0].Port))
	// The forms below are those of Docker links.
	for i, p := range slices.Backward(ports) {
		port := strconv.Itoa(int(p.Port))
		if p.Name != "" {
			vars[prefix+"_SERVICE_PORT_"+envName(p.Name)] = port
		}
		protocol := p.Protocol
		if protocol == "" {
			protocol = v1.ProtocolTCP
		}
		lower := strings.ToLower(string(protocol))
		url := fmt.Sprintf("%s://%s", lower, net.JoinHostPort(s.Spec.ClusterIP, port))
		if i == 0 {
			vars[prefix+"_PORT"] = url
		}
		name := fmt.Sprintf("%s_PORT_%s_%s", prefix, port, strings.ToUpper(string(protocol)))
		vars[name] = url
		vars[name+"_PROTO"] = lower
		vars[name+"_PORT"] = port
		vars[name+"_ADDR"] = s.Spec.ClusterIP
	}
}

func envName(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
