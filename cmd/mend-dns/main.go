// Mend-dns answers the cluster's names. mend starts it; it is no command for people.
package main

import (
	"os"

	"mend/internal/network/dns"
)

func main() { os.Exit(dns.Main(os.Args[1:])) }
