// Package volume puts a Pod's volumes in place below the Pod's directory, tells
// which mounts each container gets, and takes everything away again.
//
// Kinds: emptyDir (disk and memory), hostPath, configMap, secret, downwardAPI and
// projected. The content of the last four is what it was when the Pod started;
// it is written aside and appears at once (`..data` is a symbolic link), in the
// layout that programs which watch such volumes expect.
//
// It promises that SetUp may be repeated, that TearDown leaves neither mounts nor
// files, and that a sub-path never leads outside its volume, whatever symbolic
// links a container leaves there. It writes below the pods directory only. Layout
// below pods/<uid>: volumes/kubernetes.io~<kind>/<name>, volume-subpaths/…,
// containers/<name>/<id> (termination messages), etc-hosts.
package volume
