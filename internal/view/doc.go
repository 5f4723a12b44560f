// Package view is what loops that read from shared informers have in common: index
// functions, the transform that lightens what is cached, and the answer to one
// question: has the cache already seen what I wrote myself?
//
// A loop that acts on a cache which is behind its own last write does the same
// thing twice: it creates a second Pod for the gap the first one filled. [Writes]
// remembers, per key, the newest resourceVersion the loop wrote of each resource
// and every object it deleted, and says whether the caches have caught up. The
// memory is lost in a crash, which is safe: after a restart the caches start from
// a fresh list, which is never behind.
package view
