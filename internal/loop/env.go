package loop

import (
	"log/slog"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// Env is what app hands to every loop it builds. Client and Rest carry the
// loop's own user name; Informers is shared by all loops, so objects read from
// it must never be changed without a copy.
type Env struct {
	Client    kubernetes.Interface
	Rest      *rest.Config
	Informers informers.SharedInformerFactory
	Events    record.EventRecorder
	Clock     clock.WithTicker
	Log       *slog.Logger
	Drive     *Drive // nil but in the simulator
}

// Declaration is a loop's row in app's list: what it reads and what it alone
// writes. Resources are lower-case plurals ("pods"); a field or subresource is
// added behind a colon or slash ("replicasets:spec.replicas",
// "deployments/status"). app refuses to start when two loops declare the same
// write.
type Declaration struct {
	Name string
	// EventSource is what this loop's events show as their source: the name of
	// upstream's component, which people search for. Empty means Name.
	EventSource string
	Reads       []string
	Writes      []string
	// Build returns the loop, with its event handlers registered on
	// env.Informers. It must not block or start goroutines.
	Build func(env Env) (*Loop, error)
}
