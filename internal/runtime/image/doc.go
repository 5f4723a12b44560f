// Package image puts images into the built-in containerd and takes them out: archives
// that a user imports, the images that mend carries, and stand-ins for the names that
// public tutorials use, on machines that reach no registry.
//
// It talks to containerd's own API (transfer, images and content services), not to CRI,
// which cannot import. Whatever mend imports is pinned: no cleanup takes away what
// cannot be pulled again.
package image
