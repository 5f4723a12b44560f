// Package hostpath asks the host's file systems on behalf of hostPath volumes.
//
// Such a path may lead to a file system that hangs: a network mount whose server is
// gone, a broken disk. A system call there does not return, cannot be taken back, and
// may not even end when its process is killed; a mend that made it could not be killed
// and started again, for it would keep its locks and sockets, and neither could
// containerd. So each question is asked by a short-lived child process, this program
// with [ChildCommand], which holds nothing, and no path is handed to containerd that
// has not just answered.
//
// It promises an answer within [Limit] and a moment; the error for a path that does not
// answer names it and its mount. A child ends itself after [Limit], also when mend is
// gone by then. One that the kernel does not let end stays until the file system
// answers or is unmounted, and while it stays no other is started for its path: there
// is at most one for a path, however often a Pod tries again.
package hostpath
