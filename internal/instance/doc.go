// Package instance owns the data directory: its stamp, the instance id that every
// name on the host carries, the lock that says who is running, and the layout.
//
// The stamp is written first and removed last. A directory without it is never
// used over what it holds and never purged; one with a newer stamp is refused
// and left as it is.
package instance
