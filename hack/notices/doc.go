// Command notices writes THIRD_PARTY_NOTICES: every component that is linked
// into a binary we ship, with its version, copyright lines and licence texts.
//
// It asks the go command which packages each binary really links (go list
// -deps, per binary, with that binary's build tags), so a module that is only
// required for tests is not listed, and a new import cannot be forgotten. For
// each linked package it takes the licence files of the package's folder and of
// every folder above it, up to the module's root: forked code often carries its
// own. What is not in a module (Go itself, the C libraries in runc) is added
// from texts/.
//
// Texts that differ only in spacing and in copyright lines are printed once; the
// copyright lines stand with the component.
//
//	go run ./hack/notices          write the file
//	go run ./hack/notices -check   fail when the file on disk differs
//
// The working directory must be the repository's root. A linked module without
// any licence file is an error.
package main
