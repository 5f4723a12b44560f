// Package deadmount gives tests a file system that hangs, as one of an NFS server that
// is gone: who asks it for anything waits, and cannot be killed, until it is ended.
//
// It is a FUSE file system whose server is the test. The kernel ends it by itself when
// the test's process ends, so that nobody is left waiting. Linux and root only.
package deadmount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Mount is a mounted file system. While it is alive it holds folders only: any name
// is one, and each is empty.
type Mount struct {
	Dir string

	device *os.File
	dead   atomic.Bool
	asked  atomic.Int64
	begun  chan struct{}
	served chan struct{}
	once   sync.Once
}

// New mounts one on dir, which must exist. It is alive until [Mount.Die] is called, and
// ended and unmounted at the end of the test.
func New(t *testing.T, dir string) *Mount {
	t.Helper()
	m := mount(t, dir)
	go m.serve()
	// Whoever asks before the first answer can be killed.
	select {
	case <-m.begun:
	case <-time.After(30 * time.Second):
		t.Fatal("the kernel does not begin to use the file system")
	}
	return m
}

// NewKillable mounts one that is dead from the beginning and lets those who wait be
// killed, as an NFS mount does.
func NewKillable(t *testing.T, dir string) *Mount {
	t.Helper()
	m := mount(t, dir)
	close(m.served)
	return m
}

func mount(t *testing.T, dir string) *Mount {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("a file system that hangs needs /dev/fuse: %v", err)
		}
		t.Skipf("left out: a file system that hangs needs /dev/fuse: %v", err)
	}
	options := "fd=" + strconv.Itoa(fd) + ",rootmode=40000,user_id=0,group_id=0,allow_other"
	if err := unix.Mount("deadmount", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		t.Fatalf("mount FUSE on %s: %v", dir, err)
	}
	// Only now: before the mount the device has nothing that could be waited for.
	m := &Mount{Dir: dir, device: os.NewFile(uintptr(fd), "/dev/fuse"), begun: make(chan struct{}), served: make(chan struct{})}
	t.Cleanup(m.End)
	return m
}

// Die makes every request from now on wait.
func (m *Mount) Die() { m.dead.Store(true) }

// Asked counts the requests since it died. None of them has an answer.
func (m *Mount) Asked() int { return int(m.asked.Load()) }

// End ends the file system: who waits gets an error (ENOTCONN). It may be called again.
func (m *Mount) End() {
	m.once.Do(func() {
		m.device.Close()
		<-m.served
		_ = unix.Unmount(m.Dir, unix.MNT_DETACH)
	})
}

// The requests that are answered, as linux/fuse.h numbers them.
const (
	opLookup  = 1
	opGetAttr = 3
	opSetAttr = 4
	opMkdir   = 9
	opInit    = 26
	opOpenDir = 27
	opReadDir = 28
	opRelease = 29
	opForget  = 2
	opBatch   = 42
)

type request struct {
	Len, Op      uint32
	Unique, Node uint64
	UID, GID     uint32
	PID, Extra   uint32
}

// serve takes every request; taken, it cannot be interrupted by killing who waits.
func (m *Mount) serve() {
	defer close(m.served)
	buffer := make([]byte, 1<<17)
	for {
		n, err := m.device.Read(buffer)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) {
			continue // the request was taken back
		}
		if err != nil {
			return // closed, or unmounted by somebody else
		}
		var r request
		if err := binary.Read(bytes.NewReader(buffer[:n]), binary.NativeEndian, &r); err != nil {
			continue
		}
		if m.dead.Load() {
			m.asked.Add(1)
			continue
		}
		if r.Op == opForget || r.Op == opBatch {
			continue // not to be answered
		}
		body, errno := answer(r)
		_ = m.reply(r.Unique, errno, body)
		if r.Op == opInit {
			close(m.begun)
		}
	}
}

func (m *Mount) reply(unique uint64, errno unix.Errno, body any) error {
	var out bytes.Buffer
	if body != nil && errno == 0 {
		if err := binary.Write(&out, binary.NativeEndian, body); err != nil {
			return err
		}
	}
	var whole bytes.Buffer
	head := struct {
		Len    uint32
		Error  int32
		Unique uint64
	}{uint32(16 + out.Len()), -int32(errno), unique}
	if err := binary.Write(&whole, binary.NativeEndian, head); err != nil {
		return err
	}
	_, err := m.device.Write(append(whole.Bytes(), out.Bytes()...))
	return err
}

type attributes struct {
	Ino, Size, Blocks           uint64
	Atime, Mtime, Ctime         uint64
	AtimeNS, MtimeNS, CtimeNS   uint32
	Mode, Nlink, UID, GID, Rdev uint32
	BlockSize, Flags            uint32
}

// A validity of zero: the kernel asks each time.
type entry struct {
	Node, Generation         uint64
	EntryValid, AttrValid    uint64
	EntryValidNS, AttrValidN uint32
	Attributes               attributes
}

type attributesOut struct {
	Valid      uint64
	ValidNS, _ uint32
	Attributes attributes
}

type initOut struct {
	Major, Minor, ReadAhead, Flags uint32
	Background, Congestion         uint16
	MaxWrite, TimeGranularity      uint32
	MaxPages, MapAlignment         uint16
	Flags2                         uint32
	Unused                         [7]uint32
}

type opened struct {
	Handle      uint64
	Flags, Pads uint32
}

func folder(node uint64) attributes {
	return attributes{Ino: node, Mode: unix.S_IFDIR | 0o777, Nlink: 2, BlockSize: 4096}
}

func answer(r request) (body any, errno unix.Errno) {
	switch r.Op {
	case opInit:
		return initOut{Major: 7, Minor: 31, MaxWrite: 1 << 16}, 0
	case opGetAttr, opSetAttr:
		return attributesOut{Attributes: folder(r.Node)}, 0
	case opLookup, opMkdir:
		return entry{Node: r.Node + 1, Attributes: folder(r.Node + 1)}, 0
	case opOpenDir:
		return opened{Handle: 1}, 0
	case opReadDir, opRelease:
		return nil, 0
	}
	return nil, unix.ENOSYS
}
