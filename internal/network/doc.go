// Package network gives one node's Pods their network: a bridge with the gateway's
// address, masquerading for what leaves it, and the configuration of the CNI plugin
// that connects each Pod (package plugin, program mend-cni).
//
// Promised: Pods and the host reach each other; Pods reach whatever the host reaches,
// with the host's address; two instances on one machine do not meet, since every name
// carries the instance's id and the Pod range is chosen free of the routes and
// addresses that are there. Pods have IPv4 only.
//
// It also chooses the range of Services ([ServiceRange]); package proxy carries them, with
// a table of its own.
//
// Written on the host: the bridge, one nftables table, and net.ipv4.ip_forward when it
// was off. Teardown takes all three back; forwarding is switched off again only if we
// switched it on in this boot and no other instance is left. Nothing of this survives
// a reboot, and Setup puts back what is missing, as often as it is called.
package network
