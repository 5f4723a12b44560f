package sim

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// files is what a container sees as its filesystem: files that it wrote, kept in
// memory, over the host's files behind its mounts, which are only read. Files
// written below a mount are shared by all containers of the sandbox that mount
// the same host path.
type files struct {
	mounts []*runtimeapi.Mount
	own    *memory
	shared *memory // of the sandbox, by host path
}

// hostsFile is what a container reads whose agent wrote none.
const hostsFile = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// memory maps paths to content; nil content marks a removed file. The zero value
// is ready.
type memory struct {
	mu      sync.Mutex
	content map[string][]byte
}

func (m *memory) get(name string) (content []byte, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	content, known = m.content[name]
	return content, known
}

func (m *memory) set(name string, content []byte, add bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.content == nil {
		m.content = map[string][]byte{}
	}
	if add {
		content = append(append([]byte{}, m.content[name]...), content...)
	}
	m.content[name] = content
}

// below lists the names directly inside dir; false marks removed ones.
func (m *memory) below(dir string) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[string]bool{}
	for name, content := range m.content {
		if rest, inside := strings.CutPrefix(name, strings.TrimSuffix(dir, "/")+"/"); inside {
			first, _, _ := strings.Cut(rest, "/")
			names[first] = names[first] || content != nil
		}
	}
	return names
}

// resolve finds the mount that name lies in: the longest that fits.
func (f *files) resolve(name string) (hostPath string, mount *runtimeapi.Mount) {
	for _, candidate := range f.mounts {
		at := path.Clean(candidate.ContainerPath)
		inside := name == at || strings.HasPrefix(name, strings.TrimSuffix(at, "/")+"/")
		if inside && (mount == nil || len(at) > len(path.Clean(mount.ContainerPath))) {
			mount = candidate
			hostPath = path.Join(candidate.HostPath, strings.TrimPrefix(name, at))
		}
	}
	return hostPath, mount
}

func (f *files) read(name string) ([]byte, error) {
	name = path.Clean("/" + name)
	hostPath, mount := f.resolve(name)
	store, key := f.own, name
	if mount != nil {
		store, key = f.shared, hostPath
	}
	if content, known := store.get(key); known {
		if content == nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		return content, nil
	}
	if name == "/dev/null" {
		return []byte{}, nil
	}
	if mount == nil || mount.HostPath == "" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	content, err := os.ReadFile(hostPath)
	if errors.Is(err, fs.ErrNotExist) && name == "/etc/hosts" {
		return []byte(hostsFile), nil
	}
	return content, err
}

// write keeps content in memory. One thing goes to the host: the file that is
// mounted at exactly this path, for that is how the agent gets the termination
// message.
func (f *files) write(name string, content []byte, add bool) error {
	name = path.Clean("/" + name)
	if name == "/dev/null" {
		return nil
	}
	hostPath, mount := f.resolve(name)
	switch {
	case mount == nil:
		f.own.set(name, nonNil(content), add)
		return nil
	case mount.Readonly:
		return &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	case name == path.Clean(mount.ContainerPath):
		if err := os.MkdirAll(path.Dir(hostPath), 0o750); err != nil {
			return err
		}
		flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
		if add {
			flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
		}
		file, err := os.OpenFile(hostPath, flags, 0o666)
		if err != nil {
			return err
		}
		if _, err := file.Write(content); err != nil {
			file.Close()
			return err
		}
		return file.Close()
	}
	if _, known := f.shared.get(hostPath); add && !known {
		if before, err := os.ReadFile(hostPath); err == nil {
			content = append(before, content...)
		}
	}
	f.shared.set(hostPath, nonNil(content), add)
	return nil
}

func nonNil(content []byte) []byte {
	if content == nil {
		return []byte{}
	}
	return content
}

func (f *files) exists(name string) bool {
	if _, err := f.read(name); err == nil {
		return true
	}
	_, err := f.list(name)
	return err == nil
}

func (f *files) remove(name string) error {
	if _, err := f.read(name); err != nil {
		return err
	}
	name = path.Clean("/" + name)
	hostPath, mount := f.resolve(name)
	switch {
	case mount == nil:
		f.own.set(name, nil, false)
	case mount.Readonly:
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrPermission}
	default:
		f.shared.set(hostPath, nil, false)
	}
	return nil
}

// list has the names in a directory, sorted.
func (f *files) list(dir string) ([]string, error) {
	dir = path.Clean("/" + dir)
	names := map[string]bool{}
	written := f.own.below(dir)
	hostPath, mount := f.resolve(dir)
	if mount != nil {
		entries, err := os.ReadDir(hostPath)
		if err != nil && len(f.shared.below(hostPath)) == 0 {
			return nil, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
		}
		for _, entry := range entries {
			names[entry.Name()] = true
		}
		written = f.shared.below(hostPath)
	}
	for name, there := range written {
		names[name] = there
	}
	f.addMountPoints(dir, names)
	sorted := []string{}
	for name, there := range names {
		if there && !strings.HasPrefix(name, ".") {
			sorted = append(sorted, name)
		}
	}
	if len(sorted) == 0 && mount == nil && dir != "/" && dir != "/tmp" {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
	}
	sort.Strings(sorted)
	return sorted, nil
}

func (f *files) addMountPoints(dir string, names map[string]bool) {
	for _, mount := range f.mounts {
		if rest, inside := strings.CutPrefix(path.Clean(mount.ContainerPath), strings.TrimSuffix(dir, "/")+"/"); inside {
			first, _, _ := strings.Cut(rest, "/")
			names[first] = true
		}
	}
}
