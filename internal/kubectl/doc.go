// Package kubectl runs the embedded kubectl on mend's own cluster.
//
// Which cluster: the file named by --kubeconfig if that is given; with --context
// the user's ~/.kube/config, then mend's file; otherwise mend's file alone. The
// variable KUBECONFIG is ignored, so that a shell set up for another cluster
// never sends a command there by mistake; MEND_KUBECONFIG names another file of
// mend's for people with several instances.
package kubectl
