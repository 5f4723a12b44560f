package app

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"mend/internal/network/families"
	"mend/internal/runtime/sim"
)

// Config is what `mend up` was asked for.
type Config struct {
	DataDir string
	// APIPort is the API's port on 127.0.0.1; 0 takes a free one.
	APIPort int
	// Kubeconfig is the file for the caller; empty means ~/.kube/mend of theirs.
	Kubeconfig string
	// Simulate is the number of simulated nodes; 0 means containers.
	Simulate int
	// Behaviour is what simulated nodes do; nil is the built-in one.
	Behaviour *sim.Behaviour
	// RuntimeEndpoint is the CRI socket of a runtime that is not ours.
	RuntimeEndpoint string
	// NodeName is empty for the host's name.
	NodeName string
	// CPUs is how many the node offers to Pods; 0 means those it has.
	CPUs int
	// ConfirmTraffic holds a Pod's end up until no request reaches it, and its
	// availability until requests do.
	ConfirmTraffic bool
	// IPFamilies is [OnlyIPv4], [BothFamilies], or empty: both where the machine has IPv6.
	IPFamilies string
	// EventTTL is how long events are kept.
	EventTTL time.Duration
	Verbose  bool
	LogTo    io.Writer
}

// EventTTL is how long events are kept if nobody says otherwise, as upstream's.
const EventTTL = time.Hour

// What --ip-families takes.
const (
	OnlyIPv4     = "IPv4"
	BothFamilies = "IPv4,IPv6"
)

// ValidateIPFamilies says what is wrong with families given by a person.
func ValidateIPFamilies(text string) error {
	switch text {
	case "", OnlyIPv4:
		return nil
	case BothFamilies:
		if !families.HasIPv6() {
			return errors.New("--ip-families=IPv4,IPv6: this machine has no IPv6 (see net.ipv6.conf.all.disable_ipv6 and .default)")
		}
		return nil
	}
	return fmt.Errorf("--ip-families=%s: must be %s or %s", text, OnlyIPv4, BothFamilies)
}

// ValidateNodeName says what is wrong with a name given by a person. The empty
// name stands for the host's.
func ValidateNodeName(name string) error {
	if name == "" {
		return nil
	}
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		return fmt.Errorf("--node-name %q: %s", name, strings.Join(faults, "; "))
	}
	return nil
}

// nodeName is the given name, or the host's in the form that Kubernetes allows.
func (c Config) nodeName() (string, error) {
	if c.NodeName != "" {
		return c.NodeName, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	name := strings.ToLower(strings.TrimSpace(host))
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", errors.New("the host's name " + host + " cannot be a node's name; give one with --node-name")
	}
	return name, nil
}

// newLog makes mend's log.
func newLog(to io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level}))
}

// logLibraries sends the log of the Kubernetes libraries there too, once and for the
// whole process: they read where it goes without a lock. Of theirs only warnings and
// errors matter to an operator.
func logLibraries(to io.Writer) {
	librariesLogged.Do(func() {
		libraries := slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelWarn})).With("from", "library")
		klog.SetLoggerWithOptions(logr.FromSlogHandler(libraries.Handler()), klog.ContextualLogger(true))
	})
}

var librariesLogged sync.Once
