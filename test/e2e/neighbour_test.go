package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	cri "k8s.io/cri-client/pkg"

	"mend/internal/runtime/cleanup"
	"mend/internal/runtime/containerd"
	imagestore "mend/internal/runtime/image"
)

// neighbour is a containerd with the settings of a distribution's, but for its root.
type neighbour struct {
	t       *testing.T
	dir     string
	id      string // in its cgroups' names
	command *exec.Cmd
	runtime internalapi.RuntimeService
}

const neighbourConfig = `
version = 4
root = "DIR/var/lib/containerd"
state = "DIR/run/containerd"
[plugins."io.containerd.server.v1.grpc"]
  address = "DIR/run/containerd/containerd.sock"
[plugins."io.containerd.server.v1.ttrpc"]
  address = "DIR/run/containerd/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "DIR/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = "DIR/s"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "mend.local/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    runtime_path = "DIR/bin/containerd-shim-runc-v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "DIR/bin/runc"
      Root = "DIR/run/runc"
`

// startNeighbour runs a containerd from a copy of mend's own programs.
func startNeighbour(t *testing.T, programs string) *neighbour {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctd-") // short: a shim's socket lies below it
	if err != nil {
		t.Fatal(err)
	}
	n := &neighbour{t: t, dir: dir, id: filepath.Base(dir)}
	t.Cleanup(n.end)
	n.must(os.CopyFS(filepath.Join(dir, "bin"), os.DirFS(programs)))
	config := filepath.Join(dir, "config.toml")
	n.must(os.WriteFile(config, []byte(expand(neighbourConfig, "DIR", dir)), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	n.must(err)
	defer log.Close()
	n.command = exec.Command(filepath.Join(dir, "bin", "containerd"), "--config", config)
	n.command.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	n.command.Stdout, n.command.Stderr = log, log
	n.must(n.command.Start())
	socket := "unix://" + filepath.Join(dir, "run", "containerd", "containerd.sock")
	ctx, cancel := context.WithTimeout(context.Background(), stateLimit)
	defer cancel()
	for {
		if _, err := os.Stat(strings.TrimPrefix(socket, "unix://")); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no socket at %s", socket)
		case <-time.After(20 * time.Millisecond):
		}
	}
	images, err := imagestore.Connect(socket)
	n.must(err)
	defer images.Close()
	archive := func() (io.ReadCloser, error) { return os.Open(filepath.Join(dir, "bin", containerd.ImagesFile)) }
	n.must(images.EnsureBuiltin(ctx, n.id, archive))
	n.runtime, err = cri.NewRemoteRuntimeService(ctx, socket, stateLimit, nil, false)
	n.must(err)
	return n
}

func (n *neighbour) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// run starts a container on the host's network and returns its id.
func (n *neighbour) run(name string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stateLimit)
	defer cancel()
	host := &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/" + n.id, SecurityContext: host},
	}
	sandbox, err := n.runtime.RunPodSandbox(ctx, config, "")
	n.must(err)
	id, err := n.runtime.CreateContainer(ctx, sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "mend.local/web:1.0"},
		Command: []string{"sleep", "99999"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: host.NamespaceOptions}},
	}, config)
	n.must(err)
	n.must(n.runtime.StartContainer(ctx, id))
	return id
}

// onlyRunning says whether exactly these containers are there, and run.
func (n *neighbour) onlyRunning(ids ...string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stateLimit)
	defer cancel()
	all, err := n.runtime.ListContainers(ctx, nil)
	n.must(err)
	running := map[string]bool{}
	for _, container := range all {
		running[container.Id] = container.State == runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	for _, id := range ids {
		if !running[id] {
			return fmt.Sprintf("container %s does not run", id)
		}
	}
	return want(len(all) == len(ids), "%d containers, want %d", len(all), len(ids))
}

func (n *neighbour) end() {
	ctx, cancel := context.WithTimeout(context.Background(), stateLimit)
	defer cancel()
	if n.command != nil && n.command.Process != nil {
		_ = n.command.Process.Signal(unix.SIGTERM)
		_ = n.command.Wait()
	}
	for _, step := range []func() error{
		func() error { return cleanup.KillCgroup(ctx, "/"+n.id) },
		func() error { return cleanup.KillPrograms(ctx, filepath.Join(n.dir, "bin")) },
		func() error { return cleanup.RemoveCgroup("/" + n.id) },
		func() error { return cleanup.Unmount(n.dir) },
		func() error { return cleanup.RemoveTree(n.dir) },
	} {
		if err := step(); err != nil {
			n.t.Error(err)
		}
	}
}

// TestNeighbour runs mend beside another containerd: neither sees what the other runs,
// and when mend is purged the other's containers go on.
func TestNeighbour(t *testing.T) {
	needRoot(t)
	t.Parallel()
	c := newCluster(t)
	c.start()
	other := startNeighbour(t, c.status().Paths["runtime programs"])
	theirs := other.run("theirs")
	c.mustKubectl("create", "deployment", "ours", "--image=mend.local/web:1.0", "--replicas=2")
	c.mustKubectl("rollout", "status", "deployment/ours", "--timeout=120s")
	before := c.resting("app=ours")
	c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
	if fault := other.onlyRunning(theirs); fault != "" {
		t.Errorf("beside mend: %s", fault)
	}
	c.signal(c.mendPID(), unix.SIGKILL) // the next start looks for what is left over
	c.start()
	c.eventually("every Pod runs once and nothing else", c.eachRunsOnce)
	sameFacts(t, "beside another containerd", before, c.resting("app=ours"))
	if got := c.run("down", "--purge", "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("mend down --purge: %+v", got)
	}
	if fault := other.onlyRunning(theirs, other.run("more")); fault != "" {
		t.Errorf("after the purge of mend: %s", fault)
	}
}
