// Package apiserver serves the Kubernetes API: k8s.io/apiserver's generic
// registry over one table of kinds ([kinds]), with upstream's types, defaults,
// validation, columns and OpenAPI.
//
// A kind is a row: what may be selected, and per endpoint the rules of what a
// write resets, prepares and validates. What a kind does beyond that (a Pod's
// binding, a Service's addresses, a namespace's two deletions) has a file of its
// own.
//
// Who may ask: administrators by client certificate (system:masters), and
// mend's own loops through an in-process transport, which carries who they are
// in the request's context and never in anything that a client could send.
// Others with a certificate may ask what everybody who is known may; without one
// there is only health.
package apiserver
