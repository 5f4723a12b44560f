// Package rootca keeps the ConfigMap "kube-root-ca.crt" in every active
// namespace: the CA by which Pods verify the API server, under the key "ca.crt".
//
//	namespace            ConfigMap                           what is done
//	-------------------  ----------------------------------  -------------------------------
//	active               missing                             create it
//	active               data or description differ          put them right
//	active               data differ and it is immutable     delete it; then it is missing
//	active               as it should be                     nothing
//	terminating or gone  -                                   nothing
//
// Reads namespaces and configmaps; writes only ConfigMaps of that name, with the
// resourceVersion that was read. Whoever changes one sees it put right. Nothing
// is remembered, so nothing is lost in a crash. After a create it looks again a
// second later: what was deleted before the view showed it is told by no event.
//
// The name, key and description are upstream's (rootcacertpublisher), which
// retries for ever on one that someone made immutable.
package rootca
