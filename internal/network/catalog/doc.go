// Package catalog is one node's picture of the Services and of the EndpointSlices
// behind them, shared by those who act on it: the proxy, the DNS feed, and the gate
// that holds a Pod's end back.
//
// It is filled by a list and a watch of its own instead of a shared informer, because
// its readers need a version they can vouch for: [Changes.Version] says that every
// change of an EndpointSlice up to that resourceVersion is in the picture and that the
// Services it touched are in this or an earlier [Changes]. An informer's cache and its
// event handlers move at different times, and nothing tells a handler how far it is.
package catalog
