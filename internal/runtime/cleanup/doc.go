// Package cleanup takes away what containers leave on a host: mounts, cgroups,
// processes and folders.
//
// It is careful where a mistake would destroy a user's data: a folder is deleted only
// when nothing is mounted below it (a Pod's hostPath volume is such a mount), links are
// deleted and never followed, and processes are found by their cgroup or their program
// file, held by a pidfd before they are killed, and never by a name.
package cleanup
