// Package feed keeps the DNS program running and tells it of the cluster's Services.
//
// The program is a child in a session of its own: it outlives mend. The next mend finds it
// by its socket, sends it everything anew, and from then on what changes. One of another
// make, or with other options, is replaced: the new one binds the same ports, is fed, and
// only then is the old one told to stop. One that dies is started again.
package feed
