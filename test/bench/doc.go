// Command bench measures what the README's table of figures shows, on real
// containers and on a mend of its own: time to a Ready node, memory and CPU at
// rest, the time to heal beside three raw CRI calls on the same containerd, the
// time until a killed container runs again, requests through a Service beside
// requests straight to a Pod, and the time until the API of a killed mend is back.
// It prints medians and judges nothing; tests do not run it.
package main
