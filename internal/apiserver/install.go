package apiserver

// The API groups whose types, conversions, defaults and declarative validation
// upstream registers in one scheme.
import (
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/capabilities"
)

// allowPrivileged lets validation take privileged containers. Upstream's own
// default is to refuse them, every installer of it turns them on: who may create
// a Pod here owns the machine anyway. The setting is the process's.
func allowPrivileged() { capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true}) }

// withoutCacheSnapshots turns off that the watch cache keeps a tree of all objects for
// each change of the last 75 seconds, from which it would answer the second page of a
// list: the store answers that, too. A tenth of the memory of a busy mend was such trees.
// The setting is the process's.
func withoutCacheSnapshots() error {
	return utilfeature.DefaultMutableFeatureGate.Set(string(features.ListFromCacheSnapshot) + "=false")
}
