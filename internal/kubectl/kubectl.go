package kubectl

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	// Credential plugins of clusters named by --kubeconfig or --context.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// EnvKubeconfig names mend's kubeconfig where it is not at a default place.
const EnvKubeconfig = "MEND_KUBECONFIG"

// offline are the commands that make sense without a cluster. An empty name is
// kubectl without a command.
var offline = []string{"", "help", "version", "kustomize", "completion", "config", "options", "plugin", "__complete", "__completeNoDesc"}

// Run behaves as kubectl with args (without the program's name) and ends the
// process with kubectl's exit code. candidates are the places of mend's
// kubeconfig, the most wanted first.
func Run(args, candidates []string) int {
	choice := chooseConfig(args, candidates, os.Getenv(EnvKubeconfig), userConfig(), isFile)
	if choice.problem != "" {
		fmt.Fprintln(os.Stderr, choice.problem)
		return 1
	}
	if choice.env == "" {
		os.Unsetenv("KUBECONFIG")
	} else {
		os.Setenv("KUBECONFIG", choice.env)
	}
	// kubectl's plugin look-up and verbosity read os.Args themselves.
	os.Args = append([]string{"kubectl"}, args...)
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		cmdutil.CheckErr(err) // prints as kubectl does, and exits
		return 1
	}
	return 0
}

// configChoice is what KUBECONFIG shall be for one call, or why there is none.
type configChoice struct {
	env     string
	problem string
}

// chooseConfig decides which kubeconfig a call uses. own is MEND_KUBECONFIG,
// user the path of ~/.kube/config.
func chooseConfig(args, candidates []string, own, user string, exists func(string) bool) configChoice {
	if hasFlag(args, "--kubeconfig") {
		return configChoice{}
	}
	if own != "" {
		candidates = []string{own}
	}
	found := slices.IndexFunc(candidates, exists)
	if hasFlag(args, "--context") {
		files := []string{user}
		if found >= 0 {
			files = append(files, candidates[found])
		}
		return configChoice{env: strings.Join(files, string(filepath.ListSeparator))}
	}
	switch {
	case found >= 0:
		return configChoice{env: candidates[found]}
	case slices.Contains(offline, firstWord(args)) || hasFlag(args, "--help") || hasFlag(args, "-h"):
		return configChoice{env: candidates[0]}
	}
	return configChoice{problem: fmt.Sprintf("mend: no kubeconfig of mend's at %s; start mend with: sudo mend up (or name a file with --kubeconfig)",
		strings.Join(candidates, " or "))}
}

// hasFlag says whether args, up to a bare "--", give the flag in either form.
func hasFlag(args []string, flag string) bool {
	for _, arg := range args {
		if arg == "--" {
			return false
		}
		if arg == flag || strings.HasPrefix(arg, flag+"=") {
			return true
		}
	}
	return false
}

// firstWord is the command's name. Flags before it that take a value in a
// separate word are kubectl's global ones.
func firstWord(args []string) string {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if !strings.HasPrefix(arg, "-") {
			return arg
		}
		if takesValue(arg) {
			i++
		}
	}
	return ""
}

func takesValue(flag string) bool {
	switch flag {
	case "-n", "--namespace", "-s", "--server", "--user", "--cluster", "--token", "-v", "--v",
		"--as", "--as-group", "--as-uid", "--request-timeout", "--cache-dir",
		"--certificate-authority", "--client-certificate", "--client-key", "--tls-server-name":
		return true
	}
	return false
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() {
		return false
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	return file.Close() == nil
}

func userConfig() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".kube", "config")
}
