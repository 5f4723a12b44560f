// Package logs reads and rotates the log files that a container runtime writes in
// CRI format:
//
//	2026-10-06T00:17:09.669794202Z stdout P the first part of a long li
//	2026-10-06T00:17:09.669794203Z stdout F ne
//
// [Reader] serves `kubectl logs` with all its options. Following uses inotify, ends
// with the container and loses no line when the file is rotated in between. As with
// kubelet, only the newest file is read, a tail counts the file's lines (parts of a
// long line are lines of their own), and lines that are not in the format are left
// out.
//
// [Rotator] keeps a container's log small: at its limit the file is renamed, the
// runtime opens a new one, and older ones are compressed or removed. A crash at any
// point leaves files that the next round takes up again.
package logs
