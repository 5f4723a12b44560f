// Package kubeconfig puts mend's kubeconfig where the calling person's tools find
// it: ~/.kube/mend. ~/.kube/config is touched only by Merge, which a person has
// to ask for.
//
// A file in a person's home is written by a process with that person's rights,
// never by root: a link planted there can then lead only where the person could
// have written anyway.
package kubeconfig
