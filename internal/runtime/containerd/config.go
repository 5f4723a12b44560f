package containerd

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"
)

// SandboxImage is the image that holds a Pod's namespaces. It is pinned: nothing
// collects it.
const SandboxImage = "mend.local/pause:1"

// Config says where an instance's containerd lives.
type Config struct {
	// DataDir is the instance's data directory, RunDir its run directory
	// (/run/mend/<id>, at most 40 characters long because of the shims' sockets).
	DataDir, RunDir string
	// InstanceID is six hex digits.
	InstanceID string
	// CgroupParent is the cgroup below which the agent puts all Pods, such as
	// /mend-<id>. Only Purge uses it.
	CgroupParent string
	// CNIConfDir holds the network configuration (network.Network.ConfDir).
	CNIConfDir string
	// Log gets the supervisor's own lines; containerd's go to LogFile.
	Log *slog.Logger
}

func (c Config) binParent() string   { return filepath.Join(c.DataDir, "bin") }
func (c Config) root() string        { return filepath.Join(c.DataDir, "containerd") }
func (c Config) workDir() string     { return filepath.Join(c.DataDir, "cni") }
func (c Config) state() string       { return filepath.Join(c.RunDir, "c") }
func (c Config) shimSockets() string { return filepath.Join(c.RunDir, "s") }
func (c Config) runcRoot() string    { return filepath.Join(c.RunDir, "runc") }
func (c Config) socket() string      { return filepath.Join(c.RunDir, "containerd.sock") }
func (c Config) configFile() string  { return filepath.Join(c.RunDir, "containerd.toml") }
func (c Config) recordFile() string  { return filepath.Join(c.RunDir, "containerd.json") }
func (c Config) lockFile() string    { return filepath.Join(c.RunDir, "containerd.lock") }

// LogFile is containerd's own log.
func (c Config) LogFile() string { return filepath.Join(c.DataDir, "logs", "containerd.log") }

// RegistryDir is the folder of per-registry settings (hosts.toml), which containerd
// reads at each pull. Package image writes the loopback mirror there.
func (c Config) RegistryDir() string { return filepath.Join(c.DataDir, "containerd", "registries") }

// maxRunDir is what containerd's limit of 42 characters for the shims' socket
// directory leaves.
const maxRunDir = 40

func (c Config) validate() error {
	if !filepath.IsAbs(c.DataDir) || !filepath.IsAbs(c.RunDir) {
		return fmt.Errorf("data directory %q and run directory %q must be absolute", c.DataDir, c.RunDir)
	}
	if len(c.RunDir) > maxRunDir {
		return fmt.Errorf("the run directory %s is longer than %d characters, which the sockets in it do not allow", c.RunDir, maxRunDir)
	}
	return nil
}

// settings are what the configuration file is made of.
type settings struct {
	Config
	Bin         string
	Snapshotter string
	// RestrictOOMScore is set when this process may not lower OOM scores, and so
	// containerd may not either.
	RestrictOOMScore bool
	DisabledPlugins  []string
	SandboxImage     string
}

// disabledPlugins cost memory or write where they should not, and mend uses none.
var disabledPlugins = []string{
	"io.containerd.differ.v1.erofs",
	"io.containerd.image-verifier.v1.bindir",
	"io.containerd.internal.v1.restart",
	"io.containerd.metrics.v1.grpc-otel",
	"io.containerd.metrics.v1.grpc-prometheus",
	"io.containerd.monitor.task.v1.cgroups",
	"io.containerd.mount-handler.v1.erofs",
	"io.containerd.snapshotter.v1.blockfile",
	"io.containerd.snapshotter.v1.erofs",
}

var configTemplate = template.Must(template.New("containerd.toml").Funcs(template.FuncMap{"q": quote}).Parse(
	`# Written by mend at each start; changes are lost.
version = 4
root = {{q .Root}}
state = {{q .State}}
temp = {{q .Temp}}
{{if not .RestrictOOMScore}}oom_score = -999
{{end}}disabled_plugins = [{{range $i, $p := .DisabledPlugins}}{{if $i}}, {{end}}{{q $p}}{{end}}]

[debug]
  level = "warn"

[plugins."io.containerd.server.v1.grpc"]
  address = {{q .Socket}}
[plugins."io.containerd.server.v1.ttrpc"]
  address = {{q .TTRPC}}
[plugins."io.containerd.server.v1.debug"]
  address = ""
[plugins."io.containerd.server.v1.metrics"]
  address = ""

[plugins."io.containerd.internal.v1.opt"]
  path = {{q .Opt}}
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = {{q .ShimSockets}}
  # A shim idles nearly always: a small heap costs it nothing.
  env = ["GOGC=40"]

[plugins."io.containerd.transfer.v1.local"]
  config_path = {{q .RegistryDir}}
  [[plugins."io.containerd.transfer.v1.local".unpack_config]]
    platform = {{q .Platform}}
    snapshotter = {{q .Snapshotter}}
    differ = "walking"

# The defaults measure every container each second and every snapshot each ten.
[plugins."io.containerd.cri.v1.images"]
  stats_collect_period = 60
  snapshotter = {{q .Snapshotter}}
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = {{q .SandboxImage}}
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = {{q .RegistryDir}}

[plugins."io.containerd.grpc.v1.cri"]
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

[plugins."io.containerd.cri.v1.runtime"]
  enable_selinux = false
  enable_criu = false
  stats_collect_period = "15s"
  cdi_spec_dirs = []
  restrict_oom_score_adj = {{.RestrictOOMScore}}
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{{q .Bin}}]
    conf_dir = {{q .CNIConfDir}}
    use_internal_loopback = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = {{q .Shim}}
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = {{q .Runc}}
        Root = {{q .RuncRoot}}
        SystemdCgroup = false
`))

// quote renders a TOML basic string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func (s settings) Platform() string    { return "linux/" + runtime.GOARCH }
func (s settings) Root() string        { return filepath.Join(s.root(), "root") }
func (s settings) Temp() string        { return filepath.Join(s.root(), "tmp") }
func (s settings) Opt() string         { return filepath.Join(s.root(), "opt") }
func (s settings) State() string       { return s.state() }
func (s settings) Socket() string      { return s.socket() }
func (s settings) TTRPC() string       { return filepath.Join(s.RunDir, "ttrpc.sock") }
func (s settings) ShimSockets() string { return s.shimSockets() }
func (s settings) RuncRoot() string    { return s.runcRoot() }
func (s settings) Shim() string        { return filepath.Join(s.Bin, "containerd-shim-runc-v2") }
func (s settings) Runc() string        { return filepath.Join(s.Bin, "runc") }

// render is the configuration file's content.
func (s settings) render() (string, error) {
	var b strings.Builder
	err := configTemplate.Execute(&b, s)
	return b.String(), err
}
