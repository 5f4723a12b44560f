// Package node keeps this machine's Node object and its Lease: registration,
// capacity, conditions, addresses, images.
//
// [build] is pure: the node as it stands and what was measured give the node as it
// should be. It is written when something changed, and every 5 minutes; the Lease
// is renewed every 10 seconds, which is what tells others that the node lives.
// Conditions, reasons and texts are the kubelet's.
//
// Others write to the same object: labels and taints (clients, nodehealth),
// extended resources in status.capacity (clients). They stay as they are; the
// agent adds what it knows. A Node that somebody deletes while its agent runs is
// registered anew. Nothing is kept but in the API.
package node
