// Package store keeps the cluster's state: one embedded etcd member, reached in
// process only. It opens no socket, because a listener on loopback would let any
// local user read every Secret.
//
// What it promises: a write that was answered is on disk (fsync on); a data
// directory that cannot be read is refused with one line that says so, and is left as
// it is. Whether it was written by a newer mend is asked before, of its stamp, which is
// internal/instance's.
//
// Without room on the file system it takes no writes, says so, and takes them again
// when there is ([ReasonNoSpace]); what is there can be read all the while.
//
// What it writes: everything in the directory that it is given, the state beside which
// mend keeps other things. Nobody else touches it.
//
// Old revisions are compacted by the API server's own compactor about every five
// minutes ([CompactionInterval]); the file is defragmented when it is opened.
package store
