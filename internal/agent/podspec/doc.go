// Package podspec renders a Pod into what the container runtime understands:
// sandbox and container configurations of CRI.
//
// Rendering is a function of the Pod, the node's facts ([Host]) and the objects
// that the Pod refers to ([Sources]); it starts nothing. The rules, the names of
// labels and annotations and the texts of errors are the kubelet's
// (k8s.io/kubernetes/pkg/kubelet/kuberuntime), because people and programs read
// them.
package podspec
