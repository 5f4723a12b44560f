// Package dns answers the cluster's names: a small program of its own that goes on
// answering while mend is down.
//
// # Promise
//
// Names are those of the Kubernetes DNS specification, version 1.1.0: A and AAAA of
// Services, SRV of their named ports, the names of headless Services' Pods, CNAMEs of
// ExternalNames, PTR of ClusterIPs and of headless Services' Pods, dns-version; and
// <a-b-c-d>.<namespace>.pod, for any address. Everything else is forwarded to the
// machine's own resolvers.
//
// The view comes over a unix socket, in batches that take effect at once (package feed
// sends them). Whoever sent the last one may go away: the view stays until another comes.
// Before the first, names of the cluster are answered SERVFAIL, so that clients try again.
//
// The program runs in a session of its own. A newer one is given its sockets and knows
// everything before it is told to stop: what it does not read any more the other does. It
// ends by itself when its unix socket's file is gone.
//
// This package imports nothing of Kubernetes: what runs it stays small.
package dns
