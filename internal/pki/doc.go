// Package pki is the cluster's own certificate authority. It is created once in
// a directory that only root reads, and signs everything else on demand: serving
// certificates, which live in memory and are renewed while the process runs, and
// client certificates, which say who somebody is (common name = user,
// organisations = groups).
//
// It writes <dir>/ca.key and <dir>/ca.crt, mode 0600, once. The key is written
// first: after a crash in between, the certificate is made again from the key.
package pki
