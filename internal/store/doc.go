// Package store keeps the cluster's state: one embedded etcd member, reached in
// process only. It opens no socket, because a listener on loopback would let any
// local user read every Secret.
//
// What it promises: a write that was answered is on disk (fsync on); a data
// directory that was written by a newer mend, or that cannot be read, is refused
// with one line that says so, and is left as it is.
//
// Without room on the file system it takes no writes, says so, and takes them again
// when there is ([ReasonNoSpace]); what is there can be read all the while.
//
// What it writes: <data-dir>/format (the stamp) and everything in
// <data-dir>/etcd. Nobody else touches these.
//
// Old revisions are compacted by the API server's own compactor about every five
// minutes ([CompactionInterval]); the file is defragmented when it is opened.
package store
