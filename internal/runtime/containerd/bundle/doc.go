// Package bundle is the form in which mend carries other programs: a folder of
// zstd-compressed files with a manifest of their hashes, embedded at build time by
// `make -C runtime payload` and unpacked once per version.
//
// A version is named by the hash of its manifest. Unpack writes it aside, syncs it and
// renames it into place, so that a folder under its name is always whole; folders of
// other versions stay, since a container's shim of an earlier mend may run from there.
package bundle
