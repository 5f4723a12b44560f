// Package garbage tests, against the real API server in process, the loops that
// end things (garbage, namespace, podgc) and those that keep things (the system
// namespaces, the default ServiceAccount, the CA's ConfigMap).
package garbage
