// Package ipaddress keeps Services and IPAddresses together: each address of a Service has
// the IPAddress that says so, and none says so of a Service that has not the address.
//
// The API server writes both: the IPAddress before the Service, and its end after the
// Service's. This loop puts right what a crash in between leaves, and what somebody changes
// by hand.
//
// # Promise
//
//	| Key     | State     | Fits when                                                      | Plan                   |
//	|---------|-----------|----------------------------------------------------------------|------------------------|
//	| Service | unsaid    | no IPAddress for one of its addresses                          | Create, and an event   |
//	| Service | wrong     | the IPAddress has a wrong reference or labels                  | Delete, Create         |
//	| Service | misnamed  | the IPAddress is another Service's, which has not the address  | look again             |
//	| Service | doubled   | the IPAddress is another Service's, which has the address too  | an event, look again   |
//	| Service | outside   | the address is in no ServiceCIDR                               | an event, look again   |
//	| address | foreign   | not made for Services                                          | nothing                |
//	| address | misled    | does not refer to a Service                                    | Delete, and an event   |
//	| address | early     | of a Service that is not there, or has not the address (yet)   | look again in time     |
//	| address | leaked    | the same after 60 s, or 5 s if the Service is there            | Delete, and an event   |
//
// Before anything is written, Services are read from the server: what only seems wrong in a
// view that is behind stays, and is looked at again until the view agrees. An address that
// has no IPAddress for a moment is not given away: the API server remembers it.
//
// Messages and periods are upstream's (ipallocator/controller/repairip.go). Upstream looks at
// all Services every three minutes; here it is those whose address is doubled or outside: the
// other Service may end, the range may come.
//
// # Reads, writes, neighbours
//
// Reads Services, IPAddresses and ServiceCIDRs. Writes IPAddresses that are labelled as
// managed by ipallocator.k8s.io, with UID and resourceVersion as preconditions.
//
// # After a crash
//
// Everything is in the API. An event may be told again.
package ipaddress
