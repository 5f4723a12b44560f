package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// makeFormat writes the data directory of a release. On the release's own commit:
//
//	make build && go test ./test/e2e -run TestMakeFormat -make-format 0.1.0
var makeFormat = flag.String("make-format", "", "write the data directory of this `release` to testdata/formats")

const (
	formatsDir = "testdata/formats"
	// formatNode is the simulated node that the Pods are bound to, on whatever machine.
	formatNode = "kept"
	// formatLimit keeps the repository small.
	formatLimit = 300 << 10
)

// formatParts are the files of a data directory that are kept: the state and what says
// how to read it. Not the authority, whose certificates begin on the day they were made,
// nor what each start writes anew.
var formatParts = []string{"format", "instance", "version", "state"}

// formatManifest is what the kept cluster holds: the second rollout of a Deployment, a
// Service with an address and a port of its own, and what Pods read.
const formatManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: kept}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: kept}
data: {colour: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: kept}
stringData: {word: kept}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: kept, annotations: {kubernetes.io/change-cause: IMAGE}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: IMAGE, envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: password}}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: kept}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

// TestReleasedFormats: this mend takes the data directory of every release and finds
// all that was in it, and goes on with it.
func TestReleasedFormats(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob(filepath.Join(formatsDir, "*.tar.zst"))
	if err != nil || len(archives) == 0 {
		t.Fatalf("no data directory of a release: %v, %v", archives, err)
	}
	for _, archive := range archives {
		release := strings.TrimSuffix(filepath.Base(archive), ".tar.zst")
		t.Run(release, func(t *testing.T) {
			c := newCluster(t)
			if err := unpackFormat(archive, c.data()); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(formatsDir, release+".json"))
			c.must(err)
			before := map[string]string{}
			c.must(json.Unmarshal(text, &before))
			began := time.Now().Truncate(time.Second)
			c.startKept()
			c.eventually("the Pods run again", func() string { return c.runsSince(began) })
			if lines := differences(before, c.kept()); lines != "" {
				t.Fatalf("not all is as it was:\n%s", lines)
			}
			c.mustKubectl("rollout", "undo", "-n", "kept", "deployment/web")
			c.mustKubectl("rollout", "status", "-n", "kept", "deployment/web", "--timeout=60s")
			c.eventually("only Pods of the first image are there", func() string {
				image := c.mustKubectl("get", "pods", "-n", "kept", "-l", "app=web", "-o", "jsonpath={.items[*].spec.containers[*].image}")
				return want(image == "example.org/web:1 example.org/web:1", "%q", image)
			})
		})
	}
}

// TestMakeFormat makes an archive, when it is asked to.
func TestMakeFormat(t *testing.T) {
	if *makeFormat == "" {
		t.Skip("only with -make-format RELEASE")
	}
	c := newCluster(t)
	c.startKept()
	for _, image := range []string{"example.org/web:1", "example.org/web:2"} {
		c.mustApply(expand(formatManifest, "IMAGE", image))
		c.mustKubectl("rollout", "status", "-n", "kept", "deployment/web", "--timeout=60s")
	}
	c.eventually("only Pods of the second rollout are there", func() string {
		n := strings.Fields(c.mustKubectl("get", "pods", "-n", "kept", "-o", "name"))
		return want(len(n) == 2, "%v", n)
	})
	facts, err := json.MarshalIndent(c.kept(), "", "  ")
	c.must(err)
	if got := c.run("down", "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("mend down: %+v", got)
	}
	c.must(os.MkdirAll(formatsDir, 0o755))
	archive := filepath.Join(formatsDir, *makeFormat+".tar.zst")
	c.must(packFormat(c.data(), archive))
	c.must(os.WriteFile(filepath.Join(formatsDir, *makeFormat+".json"), append(facts, '\n'), 0o644))
	info, err := os.Stat(archive)
	c.must(err)
	if info.Size() > formatLimit {
		t.Errorf("%s has %d bytes, want at most %d", archive, info.Size(), formatLimit)
	}
}

func (c *cluster) startKept() {
	c.t.Helper()
	c.start("--simulate", "1", "--node-name", formatNode)
}

// kept is what an upgrade must not change, by the object's name.
func (c *cluster) kept() map[string]string {
	c.t.Helper()
	facts := map[string]string{}
	ctx, core := context.Background(), c.client.CoreV1()
	all := metav1.ListOptions{}
	note := func(kind string, o metav1.Object, more string) {
		facts[kind+" "+o.GetNamespace()+"/"+o.GetName()] = strings.TrimSpace(string(o.GetUID()) + " " + more)
	}
	namespaces, err := core.Namespaces().List(ctx, all)
	c.must(err)
	for _, o := range namespaces.Items {
		note("Namespace", &o, "")
	}
	nodes, err := core.Nodes().List(ctx, all)
	c.must(err)
	for _, o := range nodes.Items {
		note("Node", &o, o.Spec.PodCIDR)
	}
	services, err := core.Services("").List(ctx, all)
	c.must(err)
	for _, o := range services.Items {
		note("Service", &o, fmt.Sprint(o.Spec.ClusterIP, " ", o.Spec.Ports[0].NodePort))
	}
	deployments, err := c.client.AppsV1().Deployments("kept").List(ctx, all)
	c.must(err)
	for _, o := range deployments.Items {
		note("Deployment", &o, fmt.Sprint("generation ", o.Generation, " ", o.Annotations))
	}
	sets, err := c.client.AppsV1().ReplicaSets("kept").List(ctx, all)
	c.must(err)
	for _, o := range sets.Items {
		note("ReplicaSet", &o, fmt.Sprint(*o.Spec.Replicas, " ", o.Annotations["deployment.kubernetes.io/revision"]))
	}
	pods, err := core.Pods("kept").List(ctx, all)
	c.must(err)
	for _, o := range pods.Items {
		note("Pod", &o, o.Spec.NodeName)
	}
	settings, err := core.ConfigMaps("kept").Get(ctx, "settings", metav1.GetOptions{})
	c.must(err)
	note("ConfigMap", settings, fmt.Sprint(settings.Data))
	password, err := core.Secrets("kept").Get(ctx, "password", metav1.GetOptions{})
	c.must(err)
	note("Secret", password, string(password.Data["word"]))
	return facts
}

// runsSince is a condition for eventually: the Pods are ready, by containers that were
// started since. What the state says of earlier ones is not what we wait for.
func (c *cluster) runsSince(began time.Time) string {
	c.t.Helper()
	pods, err := c.client.CoreV1().Pods("kept").List(context.Background(), metav1.ListOptions{})
	c.must(err)
	for _, o := range pods.Items {
		for _, container := range o.Status.ContainerStatuses {
			if running := container.State.Running; running == nil || !container.Ready || running.StartedAt.Time.Before(began) {
				return fmt.Sprintf("%s: %+v", o.Name, container)
			}
		}
	}
	return ""
}

// differences lists what is not the same, one line for each.
func differences(before, after map[string]string) string {
	var lines []string
	for name, was := range before {
		if is := after[name]; is != was {
			lines = append(lines, fmt.Sprintf("%s: was %q, is %q", name, was, is))
		}
	}
	for name := range after {
		if _, known := before[name]; !known {
			lines = append(lines, name+" is new")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func packFormat(dir, archive string) error {
	var packed bytes.Buffer
	compressed, err := zstd.NewWriter(&packed, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return err
	}
	files := tar.NewWriter(compressed)
	for _, part := range formatParts {
		err := filepath.WalkDir(filepath.Join(dir, part), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			name, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))}); err != nil {
				return err
			}
			_, err = files.Write(content)
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := files.Close(); err != nil {
		return err
	}
	if err := compressed.Close(); err != nil {
		return err
	}
	return os.WriteFile(archive, packed.Bytes(), 0o644)
}

// unpackFormat gives the copy an instance id of its own, since two of them may run on
// one machine.
func unpackFormat(archive, dir string) error {
	packed, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer packed.Close()
	plain, err := zstd.NewReader(packed)
	if err != nil {
		return err
	}
	defer plain.Close()
	files := tar.NewReader(plain)
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, header.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return err
		}
	}
	var id [3]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "instance"), []byte(hex.EncodeToString(id[:])+"\n"), 0o600)
}
