package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mend/internal/network/plugin"
)

// The process's first thread stays where it is: it stands for the whole process in
// /proc, so no other namespace's goroutine may come to run on it.
func init() { runtime.LockOSThread() }

// TestMain runs this program as the CNI plugin when it is called as one, and else runs
// the tests in a network namespace of their own: whatever they do, the machine's
// network does not see it.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("CNI_COMMAND") != "":
		plugin.Main()
		return
	case os.Geteuid() != 0 || os.Getenv("MEND_TEST_NAMESPACE") != "":
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), "MEND_TEST_NAMESPACE=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func needNamespace(t *testing.T) {
	t.Helper()
	if os.Getenv("MEND_TEST_NAMESPACE") != "" {
		return
	}
	const reason = "interfaces and rules need root"
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

const waitLimit = 20 * time.Second

// lab is a host (this namespace) with one instance on it.
type lab struct {
	t   *testing.T
	cfg Config
	net *Network
}

func newLab(t *testing.T) *lab {
	t.Helper()
	needNamespace(t)
	if err := loopbackUp(); err != nil {
		t.Fatal(err)
	}
	setForwarding(t, "0")
	setSysctl(t, forwardSysctl6, "0")
	dir := t.TempDir()
	l := &lab{t: t, cfg: Config{
		InstanceID: "0a1b2c", DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run", "0a1b2c"),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	t.Cleanup(func() {
		if err := Teardown(t.Context(), l.cfg); err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *lab) setup() {
	l.t.Helper()
	var err error
	if l.net, err = Setup(l.t.Context(), l.cfg); err != nil {
		l.t.Fatal(err)
	}
}

func setForwarding(t *testing.T, value string) {
	t.Helper()
	setSysctl(t, forwardSysctl, value)
}

func forwardingNow(t *testing.T) string {
	t.Helper()
	return sysctlNow(t, forwardSysctl)
}

func setSysctl(t *testing.T, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

func sysctlNow(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// space is another network namespace, held by a thread that runs what it is given.
type space struct {
	path string
	work chan func()
}

func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		s.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		if err == nil {
			err = loopbackUp()
		}
		ready <- err
		for f := range s.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(s.work) })
	return s
}

func loopbackUp() error {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func (s *space) do(f func()) {
	done := make(chan struct{})
	s.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// serve answers each connection to a TCP port of the namespace with the caller's
// address and a name.
func (s *space) serve(t *testing.T, port, name string) {
	t.Helper()
	var listener net.Listener
	var err error
	s.do(func() { listener, err = net.Listen("tcp", ":"+port) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			fmt.Fprintf(conn, "%s for %s", name, netip.MustParseAddr(host).Unmap())
			conn.Close()
		}
	}()
}

// ask connects from a namespace (this one when s is nil) and returns the answer.
func (s *space) ask(address string, limit time.Duration) (string, error) {
	var answer string
	var err error
	ask := func() {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", address, limit); err != nil {
			return
		}
		defer conn.Close()
		var b []byte
		b, err = io.ReadAll(conn)
		answer = string(b)
	}
	if s == nil {
		ask()
	} else {
		s.do(ask)
	}
	return answer, err
}

func expect(t *testing.T, from *space, address, want string) {
	t.Helper()
	if got, err := from.ask(address, waitLimit); err != nil || got != want {
		t.Errorf("%s answered %q, %v; want %q", address, got, err, want)
	}
}

// call runs the plugin as a container runtime does.
func (l *lab) call(command, container, ns string, mappings string) ([]byte, error) {
	l.t.Helper()
	list, err := os.ReadFile(filepath.Join(l.net.ConfDir, "10-mend.conflist"))
	if err != nil {
		l.t.Fatal(err)
	}
	var parsed struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(list, &parsed); err != nil {
		l.t.Fatal(err)
	}
	conf := parsed.Plugins[0]
	conf["cniVersion"], conf["name"] = parsed.CNIVersion, parsed.Name
	if command == "STATUS" || command == "GC" {
		conf["cniVersion"] = "1.1.0" // which brought them
	}
	if command == "GC" {
		conf["cni.dev/valid-attachments"] = []map[string]string{{"containerID": container, "ifname": "eth0"}}
	}
	if mappings != "" {
		conf["runtimeConfig"] = map[string]any{"portMappings": json.RawMessage(mappings)}
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_NETNS=" + ns, "CNI_IFNAME=eth0", "CNI_PATH=/nowhere"}
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return out, nil
}

// add connects a new Pod and returns its namespace and IPv4 address.
func (l *lab) add(container, mappings string) (*space, string) {
	l.t.Helper()
	s, addresses := l.connect(container, mappings)
	return s, addresses[0].String()
}

// connect is add with all addresses.
func (l *lab) connect(container, mappings string) (*space, []netip.Addr) {
	l.t.Helper()
	s := newSpace(l.t)
	out, err := l.call("ADD", container, s.path, mappings)
	if err != nil {
		l.t.Fatal(err)
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	want := 1
	if l.net.PodCIDR6.IsValid() {
		want = 2
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != want {
		l.t.Fatalf("the plugin's result is %s (%v)", out, err)
	}
	var addresses []netip.Addr
	for _, ip := range result.IPs {
		addresses = append(addresses, ip.Address.Addr())
	}
	return s, addresses
}

// outside is a machine beyond the host, on 192.0.2.0/24, which has no route to Pods.
func (l *lab) outside() *space {
	l.t.Helper()
	s := newSpace(l.t)
	var err error
	s.do(func() {
		var ns int
		if ns, err = unix.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getpid()), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		defer unix.Close(ns)
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "uplink", PeerNamespace: netlink.NsFd(ns)}
		if err = netlink.LinkAdd(veth); err != nil {
			return
		}
		err = errors.Join(address("eth0", "192.0.2.9/24"), address("eth0", "2001:db8::9/64"))
	})
	if err == nil {
		err = errors.Join(address("uplink", "192.0.2.1/24"), address("uplink", "2001:db8::1/64"))
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if link, err := netlink.LinkByName("uplink"); err == nil {
			netlink.LinkDel(link)
		}
	})
	return s
}

func address(name, prefix string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: toIPNet(netip.MustParsePrefix(prefix)), Flags: flags(prefix)}); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func flags(prefix string) int {
	if strings.Contains(prefix, ":") {
		return unix.IFA_F_NODAD
	}
	return 0
}

// state lists interfaces with addresses, routes and tables of this namespace.
func state(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "link %s %v\n", l.Attrs().Name, addresses)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		fmt.Fprintf(&b, "route %v\n", r)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		fmt.Fprintf(&b, "table %s of %d\n", table.Name, table.Family)
	}
	return b.String()
}
