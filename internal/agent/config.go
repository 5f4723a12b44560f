package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"
)

// Config is what an agent needs. NodeName, Client, Runtime, Images, DataDir,
// LogDir and NodeIP are required.
type Config struct {
	NodeName string
	Client   kubernetes.Interface
	// ListWatch is how Pods and Services (their plural) are watched; nil goes
	// through Client.
	ListWatch func(plural string, selector fields.Selector) cache.ListerWatcher
	Runtime   cri.RuntimeService
	Images    cri.ImageManagerService
	// Exits calls exited, which does not block, with the id of each container whose
	// process has ended, sooner than Runtime tells of it, until ctx or the stream ends.
	// nil: nothing is told sooner.
	Exits func(ctx context.Context, exited func(container string)) error

	// DataDir holds the Pods' files (pods/<uid>/…), LogDir their logs. Absolute.
	DataDir string
	LogDir  string
	// CgroupParent is the cgroup that everything lives below ("/mend-<id>").
	// Empty: Pods get no cgroups of their own (a simulated node).
	CgroupParent string
	// Simulated: nothing is mounted, since containers are not real.
	Simulated bool

	// NodeIP is the node's InternalIP; NodeIPs, if set, all of them, primary first.
	NodeIP  string
	NodeIPs []string
	// PodCIDRs are the ranges of Pods' addresses, one of each family.
	PodCIDRs []string

	ClusterDomain string
	ClusterDNS    []string
	// ResolvConf is the host's resolver file; empty takes /etc/resolv.conf.
	ResolvConf string

	// Labels and Taints are those the node registers with, besides the standard
	// ones.
	Labels map[string]string
	Taints []v1.Taint
	// Capacity overrides what is measured (a simulated node).
	Capacity v1.ResourceList
	// AllocatableReserve is kept from Pods.
	AllocatableReserve v1.ResourceList
	// MaxPods defaults to 110.
	MaxPods int

	// Gate holds a Pod's end up until no request reaches it; nil: nothing does.
	Gate Gate
	// Workers is how many Pods are worked on at once, and how many statuses are
	// written; default 16.
	Workers int

	// Events should have the component "kubelet" and the node's name as host.
	Events record.EventRecorder
	Clock  clock.WithTicker
	Log    *slog.Logger

	// KubeletListen and KubeletTLS serve the kubelet's HTTP API; without a listener
	// it is not served. TLS must require client certificates. Authorizer decides
	// about each request; by default only system:masters may ask.
	KubeletListen net.Listener
	KubeletTLS    *tls.Config
	Authorizer    authorizer.UnconditionalAuthorizer

	// ProbeDial opens the connections of probes and HTTP hooks; default the network.
	ProbeDial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Gate knows when requests no longer reach a Pod.
type Gate interface {
	// LeftEndpoints returns a channel that is closed when no new request reaches the
	// terminating Pod and those in flight are answered, or ctx ends. It does not
	// block, and sees to it that the channel is closed within the grace period.
	LeftEndpoints(ctx context.Context, pod *v1.Pod) <-chan struct{}
}

func (c Config) withDefaults() (Config, error) {
	var missing []error
	for name, absent := range map[string]bool{
		"NodeName": c.NodeName == "", "Client": c.Client == nil, "Runtime": c.Runtime == nil,
		"Images": c.Images == nil, "NodeIP": c.NodeIP == "" && len(c.NodeIPs) == 0,
	} {
		if absent {
			missing = append(missing, fmt.Errorf("agent: %s is required", name))
		}
	}
	for name, dir := range map[string]string{"DataDir": c.DataDir, "LogDir": c.LogDir} {
		if !filepath.IsAbs(dir) {
			missing = append(missing, fmt.Errorf("agent: %s must be an absolute path, not %q", name, dir))
		}
	}
	if err := errors.Join(missing...); err != nil {
		return c, err
	}
	if len(c.NodeIPs) == 0 {
		c.NodeIPs = []string{c.NodeIP}
	}
	if c.ResolvConf == "" {
		if _, err := os.Stat("/etc/resolv.conf"); err == nil {
			c.ResolvConf = "/etc/resolv.conf"
		}
	}
	if c.MaxPods == 0 {
		c.MaxPods = 110
	}
	if c.Workers == 0 {
		c.Workers = workers
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Events == nil {
		c.Events = &record.FakeRecorder{}
	}
	if c.ProbeDial == nil {
		c.ProbeDial = (&net.Dialer{}).DialContext
	}
	c.Log = c.Log.With("node", c.NodeName)
	return c, nil
}

func (c Config) podsDir() string { return filepath.Join(c.DataDir, "pods") }
