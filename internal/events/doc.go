// Package events writes what the loops and agents tell about objects, behind
// everything else that is written.
//
// A Pod that comes up tells five things and takes three writes, so in a burst the
// events would take most of the store and of the processor from the Pods that they
// are about. They wait here while others write, and catch up when those are done;
// an event says itself when it happened. Warnings go first.
//
// Equal events are counted in one object and floods of similar ones are cut off, by
// client-go's correlator with upstream's numbers, but for how many are [remembered].
//
// What waits is lost in a crash, as upstream's is, and beyond [limit] of a type the
// newest are dropped; upstream drops at 1,000.
package events
