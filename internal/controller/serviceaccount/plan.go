package serviceaccount

import corev1 "k8s.io/api/core/v1"

// defaultName is the account that a Pod gets when it names none.
const defaultName = "default"

// Observed is one namespace (nil: gone) and whether it has its account.
type Observed struct {
	Namespace  *corev1.Namespace
	HasAccount bool
}

// Plan creates the account named Create, or nothing when it is empty.
type Plan struct{ Create, Why string }

func plan(o Observed) Plan {
	n := o.Namespace
	if n == nil || n.DeletionTimestamp != nil || n.Status.Phase != corev1.NamespaceActive || o.HasAccount {
		return Plan{}
	}
	return Plan{Create: defaultName, Why: "every active namespace has one"}
}
