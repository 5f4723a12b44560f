package deployment

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/dump"
	"k8s.io/utils/ptr"
)

// hashLabel tells the Pods of one ReplicaSet from those of its siblings.
const hashLabel = apps.DefaultDeploymentUniqueLabelKey

// sameTemplate says whether two templates ask for the same Pods. The hash label is
// not compared: only the ReplicaSet's has one, and an API that has grown a field
// since hashes the same template differently.
func sameTemplate(a, b *v1.PodTemplateSpec) bool {
	return apiequality.Semantic.DeepEqual(withoutHash(a), withoutHash(b))
}

func withoutHash(template *v1.PodTemplateSpec) *v1.PodTemplateSpec {
	if _, ok := template.Labels[hashLabel]; !ok {
		return template
	}
	plain := *template
	plain.Labels = maps.Clone(template.Labels)
	delete(plain.Labels, hashLabel)
	return &plain
}

// templateHash is Kubernetes' hash of a template: FNV-1a (32 bit) over the dump of
// the value and the collision count, in letters that make no words. It only names
// things; equality is decided by sameTemplate.
func templateHash(template v1.PodTemplateSpec, collisions *int32) string {
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%v", dump.ForHash(template))
	if collisions != nil {
		var count [8]byte
		binary.LittleEndian.PutUint32(count[:], uint32(*collisions))
		hash.Write(count[:])
	}
	return rand.SafeEncodeString(fmt.Sprint(hash.Sum32()))
}

// replicaSetName is <deployment>-<hash>, the Deployment's name cut where both
// would be too long for a name.
func replicaSetName(deployment, hash string) string {
	room := validation.DNS1123SubdomainMaxLength - len(hash) - 1
	return deployment[:min(len(deployment), room)] + "-" + hash
}

// draftCurrent drafts a ReplicaSet of the present template, without Pods.
func (r *rollout) draftCurrent() {
	hash := templateHash(r.d.Spec.Template, r.d.Status.CollisionCount)
	template := *r.d.Spec.Template.DeepCopy()
	template.Labels = with(template.Labels, hashLabel, hash)
	selector := r.d.Spec.Selector.DeepCopy()
	selector.MatchLabels = with(selector.MatchLabels, hashLabel, hash)
	r.current = &draft{
		create:   true,
		minReady: r.d.Spec.MinReadySeconds,
		rs: &apps.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{
				Name:            replicaSetName(r.d.Name, hash),
				Namespace:       r.d.Namespace,
				Labels:          maps.Clone(template.Labels),
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.d, kind)},
			},
			Spec: apps.ReplicaSetSpec{
				Replicas:        ptr.To[int32](0),
				MinReadySeconds: r.d.Spec.MinReadySeconds,
				Selector:        selector,
				Template:        template,
			},
		},
	}
	r.numberCurrent()
	r.copyAnnotations()
	r.stamp(r.current)
	r.revision = r.current.annotation(revisionAnnotation)
	r.markCreated()
}

func with(labels map[string]string, key, value string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	return labels
}
