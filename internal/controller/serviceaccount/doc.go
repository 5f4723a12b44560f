// Package serviceaccount keeps the ServiceAccount "default" in every active
// namespace, because a Pod cannot be created before it is there.
//
//	namespace                ServiceAccount default    what is done
//	-----------------------  ------------------------  ------------
//	active                   missing                   create it
//	active                   there                     nothing
//	terminating or gone      -                         nothing
//
// Reads namespaces and serviceaccounts; creates serviceaccounts named "default"
// and never changes one. Users may change and delete it; deleted, it comes back.
// Nothing is remembered, so nothing is lost in a crash. After a create it looks again
// a second later: an account that was deleted before the view showed it would be
// missed, for no event tells of it.
package serviceaccount
