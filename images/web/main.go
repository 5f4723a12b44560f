// Web is the sample image's only program: a web server that can be told to
// misbehave, and, under the names in /bin, the few commands that people type after
// `kubectl exec POD --`.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// main runs the command that the program was called as: through a link
// (/bin/cat), or as a first argument (web cat FILE). Without either it serves.
func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if _, known := commands[name]; !known {
		name = "serve"
		if len(args) > 0 {
			name, args = args[0], args[1:]
		}
	}
	std := streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	if name == "serve" {
		os.Exit(serve(std))
	}
	run, known := commands[name]
	if !known {
		fmt.Fprintf(os.Stderr, "web: unknown command %q\n", name)
		os.Exit(127)
	}
	os.Exit(run(std, args))
}

// streams are a command's standard streams.
type streams struct {
	in       io.Reader
	out, err io.Writer
}
