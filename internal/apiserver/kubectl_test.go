package apiserver_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"mend/internal/testkit"
)

// kubectl runs unmodified kubectl against the server. It is not safe for
// parallel use: kubectl ends through a global hook.
func kubectl(t *testing.T, kubeconfig string, args ...string) (out, errout string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag()
	command := cmd.NewKubectlCommand(cmd.KubectlOptions{IOStreams: streams, ConfigFlags: flags, Arguments: append([]string{"kubectl"}, args...)})
	command.SetArgs(append([]string{"--kubeconfig", kubeconfig, "--cache-dir", t.TempDir()}, args...))
	command.SetIn(streams.In)
	command.SetOut(&stdout)
	command.SetErr(&stderr)
	type ended struct{}
	cmdutil.BehaviorOnFatal(func(message string, _ int) {
		stderr.WriteString(message)
		panic(ended{})
	})
	defer cmdutil.DefaultBehaviorOnFatal()
	func() {
		defer func() {
			if cause := recover(); cause != nil && cause != (ended{}) {
				panic(cause)
			}
		}()
		if err := command.Execute(); err != nil {
			stderr.WriteString(err.Error())
		}
	}()
	return stdout.String(), stderr.String()
}

const webManifest = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 3
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - name: web
        image: nginx:1.24
`

// commands are what people type, in this order, and what they then see.
var commands = []struct {
	file    string
	args    string
	out     string // must be in the output
	problem string // must be in the errors; empty: there are none
}{
	{args: "get pods", problem: "No resources found in default namespace."},
	{args: "get nodes", problem: "No resources found"},
	{args: "get pod none", problem: `Error from server (NotFound): pods "none" not found`},
	{file: webManifest, args: "apply -f FILE", out: "deployment.apps/web created"},
	{file: webManifest, args: "apply -f FILE", out: "deployment.apps/web unchanged"},
	{file: strings.Replace(webManifest, "1.24", "1.25", 1), args: "apply --dry-run=server -f FILE", out: "deployment.apps/web configured (server dry run)"},
	{file: strings.Replace(webManifest, "1.24", "1.25", 1), args: "apply --server-side --field-manager=ops -f FILE", problem: `conflict with "kubectl-client-side-apply" using apps/v1: .spec.template.spec.containers[name="web"].image`},
	{args: "get deployments", out: "NAME   READY   UP-TO-DATE   AVAILABLE   AGE\nweb    0/3     0            0"},
	{args: "get deploy web -o wide", out: "CONTAINERS   IMAGES       SELECTOR"},
	{args: "get deploy,rs,svc,cm", out: "deployment.apps/web"},
	{args: "get all", out: "deployment.apps/web"},
	{args: "scale deployment web --replicas=5", out: "deployment.apps/web scaled"},
	{args: "set image deployment/web web=nginx:1.25", out: "deployment.apps/web image updated"},
	{args: "get deploy web -o jsonpath={.metadata.generation}", out: "3"},
	{args: "annotate deployment web kubernetes.io/change-cause=why", out: "deployment.apps/web annotated"},
	{args: "rollout pause deployment web", out: "deployment.apps/web paused"},
	{args: "explain deployment.spec.replicas", out: "FIELD: replicas <integer>"},
	{args: "explain pod.status.phase", out: "FIELD: phase <string>"},
	{args: "api-resources --verbs=list -o name", out: "endpointslices.discovery.k8s.io"},
	{args: "auth can-i delete pods", out: "yes"},
	{args: "auth can-i --list", out: "*.*"},
	{args: "auth whoami", out: "admin"},
	{args: "describe deployment web", out: "Replicas:               5 desired | 0 updated | 0 total | 0 available | 0 unavailable"},
	{args: "run hello --image=nginx", out: "pod/hello created"},
	{args: "get pods", out: "NAME    READY   STATUS    RESTARTS   AGE\nhello   0/1     Pending   0"},
	{args: "label pod hello tier=front", out: "pod/hello labeled"},
	{args: "get pods -l tier=front --show-labels", out: "run=hello,tier=front"},
	{args: "get pods --field-selector=status.phase=Running", problem: "No resources found"},
	{args: "expose deployment web --port=80", out: "service/web exposed"},
	{args: "get svc web", out: "NAME   TYPE        CLUSTER-IP"},
	{args: "get servicecidrs", out: "NAME         CIDRS          AGE\nkubernetes   10.96.0.0/12   "},
	{args: "get ipaddresses,servicecidrs", out: "PARENTREF\nipaddress.networking.k8s.io/10."},
	{args: "get ip", out: "services/default/web"},
	{args: "create configmap c --from-literal=k=v", out: "configmap/c created"},
	{args: "create namespace team", out: "namespace/team created"},
	{args: "-n nowhere create configmap c", problem: `error: failed to create configmap: namespaces "nowhere" not found`},
	{file: webManifest + "  bogus: 1\n", args: "apply -f FILE", problem: `strict decoding error: unknown field "spec.bogus"`},
	{file: strings.Replace(webManifest, "replicas: 3", "replicas: many", 1), args: "apply -f FILE", problem: "unrecognized type: int32"},
	{file: strings.Replace(webManifest, "  name: web\n", "", 1), args: "apply -f FILE", problem: "resource name may not be empty"},
	{file: strings.Replace(webManifest, "labels: {app: web}", "labels: {app: other}", 1), args: "replace -f FILE", problem: "`selector` does not match template `labels`"},
	{file: "a: [", args: "apply -f FILE", problem: "error converting YAML to JSON"},
	{args: "delete pod hello", out: `pod "hello" deleted`},
	{args: "delete deployment web --cascade=orphan --wait=false", out: `deployment.apps "web" deleted`},
	{args: "get events", problem: "No resources found in default namespace."},
	{args: "get --raw /version", out: `"minor": "37"`},
	{args: "cluster-info", out: "is running at"},
}

func TestKubectlDoesWhatPeopleDo(t *testing.T) {
	s := testkit.StartAPIServer(t, testkit.Listening)
	dir := t.TempDir()
	config, manifest := filepath.Join(dir, "config"), filepath.Join(dir, "web.yaml")
	if err := os.WriteFile(config, s.Kubeconfig(t, "admin", "system:masters"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		if err := os.WriteFile(manifest, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		out, problem := kubectl(t, config, strings.Fields(strings.ReplaceAll(c.args, "-f FILE", "-f "+manifest))...)
		if !strings.Contains(out, c.out) {
			t.Errorf("kubectl %s: output\n%s\nlacks %q (errors: %s)", c.args, out, c.out, problem)
		}
		if c.problem == "" && problem != "" || !strings.Contains(problem, c.problem) {
			t.Errorf("kubectl %s: errors %q, want %q", c.args, problem, c.problem)
		}
	}
}
