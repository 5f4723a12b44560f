package hostpath

import (
	"fmt"
	"io"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"

	"mend/internal/agent/volume"
)

// ChildCommand is the hidden subcommand of mend whose body is [Child].
const ChildCommand = "__hostpath"

// What a child is asked to do.
const (
	doCheck   = "check"    // TYPE PATH
	doSubPath = "sub-path" // VOLUME SUB TARGET
)

// How a child ends that has no answer.
const (
	exitRefused = 3 // it prints why
	exitHangs   = 4
)

// Child asks one question and returns the process's exit code; it ends the process
// itself when there is no answer in time. A thread that waits in the kernel then ends
// at the latest when it would come back: nothing is done late.
func Child(args []string, out io.Writer) int {
	if len(args) < 2 {
		fmt.Fprint(out, "want a limit and a question")
		return exitRefused
	}
	limit, err := time.ParseDuration(args[0])
	if err != nil {
		fmt.Fprint(out, err)
		return exitRefused
	}
	time.AfterFunc(limit, func() { os.Exit(exitHangs) })
	answer, err := do(args[1], args[2:])
	if err != nil {
		fmt.Fprint(out, err)
		return exitRefused
	}
	fmt.Fprint(out, answer)
	return 0
}

func do(question string, args []string) (string, error) {
	switch {
	case question == doCheck && len(args) == 2:
		kind := v1.HostPathType(args[0])
		return "", volume.CheckHostPath(&v1.HostPathVolumeSource{Path: args[1], Type: &kind})
	case question == doSubPath && len(args) == 3:
		return volume.Kernel{}.SubPath(args[0], args[1], args[2])
	}
	return "", fmt.Errorf("unknown question %q with %d arguments", question, len(args))
}
