package rootca

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	configMapName = "kube-root-ca.crt"
	caKey         = "ca.crt"

	descriptionKey = "kubernetes.io/description"
	description    = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Observed is one namespace (nil: gone), its ConfigMap (nil: missing) and the CA
// certificates that it should hold, in PEM.
type Observed struct {
	Namespace *corev1.Namespace
	ConfigMap *corev1.ConfigMap
	CA        string
}

// Plan has at most one of Create, Update and Delete.
type Plan struct {
	Create, Update, Delete *corev1.ConfigMap
	Why                    string
}

func plan(o Observed) Plan {
	n, have := o.Namespace, o.ConfigMap
	data := map[string]string{caKey: o.CA}
	switch {
	case n == nil || n.DeletionTimestamp != nil || n.Status.Phase != corev1.NamespaceActive:
		return Plan{}
	case have == nil:
		return Plan{Why: "every active namespace has one", Create: &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: n.Name, Name: configMapName, Annotations: map[string]string{descriptionKey: description}},
			Data:       data,
		}}
	case have.DeletionTimestamp != nil:
		return Plan{} // its end will be told
	case !maps.Equal(have.Data, data) && have.Immutable != nil && *have.Immutable:
		return Plan{Delete: have, Why: "its data are wrong and cannot be changed"}
	case !maps.Equal(have.Data, data) || have.Annotations[descriptionKey] == "":
		right := have.DeepCopy()
		right.Data = data
		metav1.SetMetaDataAnnotation(&right.ObjectMeta, descriptionKey, description)
		return Plan{Update: right, Why: "it was changed"}
	}
	return Plan{}
}
