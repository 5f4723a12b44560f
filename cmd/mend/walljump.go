//go:build walljump

package main

// Only the tests of a jumping wall clock build with this.
import _ "mend/internal/testkit/walljump"
