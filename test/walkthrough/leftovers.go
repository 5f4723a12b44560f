package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// goneLimit is how long the kernel may take to let go of what has ended.
const goneLimit = 15 * time.Second

// inventory is everything on the machine that a mend might leave, by kind.
type inventory map[string][]string

func takeInventory() (inventory, error) {
	found := inventory{}
	for kind, list := range map[string]func() ([]string, error){
		"process": processes, "mount": mounts, "interface": interfaces, "route": routes,
		"nftables table": tables, "cgroup": cgroups, "file": files, "socket": sockets,
	} {
		items, err := list()
		if err != nil {
			return nil, fmt.Errorf("list of %ss: %w", kind, err)
		}
		found[kind] = items
	}
	return found, nil
}

// compare waits until nothing is there that was not there before.
func (before inventory) compare(ctx context.Context, id string) error {
	deadline := time.Now().Add(goneLimit)
	for {
		now, err := takeInventory()
		if err != nil {
			return err
		}
		left := before.added(now, id)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settlePause):
		}
	}
}

// added lists what is in now alone, without what carries another instance's id:
// other mends may start while this one runs.
func (before inventory) added(now inventory, id string) []string {
	var left []string
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		for _, item := range now[kind] {
			other := instanceName.FindStringSubmatch(item)
			if !slices.Contains(before[kind], item) && (other == nil || other[1] == id) {
				left = append(left, kind+" "+item)
			}
		}
	}
	return left
}

var (
	instanceName = regexp.MustCompile(`\bm(?:end[-/])?([0-9a-f]{6})\b`)
	ownCgroup    = regexp.MustCompile(`/mend-[0-9a-f]{6}`)
)

// processes lists those that run a mend or a part of its runtime.
func processes() ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, dir := range dirs {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended since
		}
		text := string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
		cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		group := ownCgroup.Find(cgroup)
		if group != nil {
			text += " in " + string(group)
		}
		if (group != nil || strings.Contains(text, "mend-walk-")) && !strings.Contains(text, "walkthrough") {
			found = append(found, filepath.Base(dir)+" "+text)
		}
	}
	return found, err
}

func mounts() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, fields[4])
		}
	}
	return points, nil
}

func interfaces() ([]string, error) {
	links, err := net.Interfaces()
	var names []string
	for _, link := range links {
		names = append(names, link.Name)
	}
	return names, err
}

func routes() ([]string, error) {
	list, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	var texts []string
	for _, route := range list {
		texts = append(texts, route.String())
	}
	return texts, err
}

func tables() ([]string, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	list, err := conn.ListTables()
	var names []string
	for _, table := range list {
		names = append(names, table.Name)
	}
	return names, err
}

func cgroups() ([]string, error) {
	var dirs []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // one may have ended since
		}
		// Deeper ones of other programs come and go.
		deep := strings.Count(path, "/") > strings.Count("/sys/fs/cgroup/memory/x", "/")
		if !deep || strings.Contains(path, "mend") {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs, err
}

// files lists what lies where a mend might write outside its data directory.
func files() ([]string, error) {
	var found []string
	for _, pattern := range []string{"/run/mend", "/run/mend/*", "/run/containerd", "/run/netns/*", "/var/run/netns/*",
		"/var/lib/cni", "/var/lib/containerd", "/var/lib/mend", "/etc/cni", "/etc/containerd", "/opt/cni", "/opt/containerd",
		"/run/runc", "/var/log/pods", "/var/log/containers", "/dev/shm/*", filepath.Join(os.TempDir(), "mend-walk-*")} {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		found = append(found, matches...)
	}
	return found, nil
}

// sockets lists the unix sockets whose path names a mend.
func sockets() ([]string, error) {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	var bound []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 7 && strings.Contains(fields[7], "mend") {
			bound = append(bound, fields[7])
		}
	}
	return bound, nil
}
