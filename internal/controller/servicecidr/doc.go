// Package servicecidr looks after ServiceCIDRs: the ranges from which Services get their
// addresses.
//
// # Promise
//
// The ServiceCIDR "kubernetes" exists. Each one has the finalizer
// networking.k8s.io/service-cidr-finalizer and the condition Ready. One that is being
// deleted goes when no IPAddress would be left without a range.
//
//	| State    | Fits when                                                     | Plan                        | Left by                     |
//	|----------|---------------------------------------------------------------|-----------------------------|-----------------------------|
//	| missing  | the default one is not there                                  | Create                      | its event                   |
//	| open     | not being deleted, without the finalizer                      | add the finalizer           | its event                   |
//	| unready  | not being deleted, Ready is not True                          | Ready=True                  | its event                   |
//	| ready    | not being deleted otherwise                                   | nothing                     | its event                   |
//	| blocked  | being deleted, an IPAddress lies in no other range            | Ready=False, Terminating    | an IPAddress's or another   |
//	|          |                                                               |                             | ServiceCIDR's event         |
//	| leaving  | being deleted for less than 10 s, not blocked                 | look again then             | time                        |
//	| free     | being deleted for longer, not blocked                         | remove the finalizer        | its event                   |
//
// The 10 seconds are upstream's: whoever has just given an address from the range has
// stored it by then. The conditions and messages are upstream's (pkg/controller/servicecidrs).
//
// # Reads, writes, neighbours
//
// Reads ServiceCIDRs and IPAddresses. Writes servicecidrs/status, the finalizer, and the
// default ServiceCIDR when somebody has removed it; the API server creates it at its start,
// and gives addresses only from ranges that are ready.
//
// # After a crash
//
// Everything is in the API.
package servicecidr
