// Command walkthrough follows both documents that mend implements, command by
// command, on a mend of its own: it prints each command as a person would type
// it, its real output and how long it took, checks the output, and at the end
// that nothing is left on the machine. It exits non-zero at the first difference.
//
//	walkthrough --mend bin/mend              on real containers, as root
//	walkthrough --mend bin/mend --simulate   on the simulated runtime
//
// steps_*.go hold the steps, in the documents' order; checks.go what is expected
// of an output; world.go the machine around them; leftovers.go what a purge must
// not leave.
package main
