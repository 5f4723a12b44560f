// Mend-cni is mend's CNI plugin. containerd starts it for every Pod; it is no command
// for people.
package main

import "mend/internal/network/plugin"

func main() { plugin.Main() }
