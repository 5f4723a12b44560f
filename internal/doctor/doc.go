// Package doctor says what keeps a machine from running mend, one line per
// problem with its mend. observe.go reads the machine, plan.go judges what was
// read; only the first needs a machine.
package doctor
