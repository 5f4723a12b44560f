package e2e

import (
	"bytes"
	"context"
	bits "encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	sector = 512
	logDir = "state/etcd/member/wal"
	dbFile = "state/etcd/member/snap/db"
)

// storm creates ConfigMaps, several at once, and knows which were acknowledged.
type storm struct {
	mu           sync.Mutex
	acknowledged map[string]bool
}

func marker(n int) string { return fmt.Sprintf("marker-%06d-end", n) }

func (s *storm) snapshot() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]bool{}
	for name := range s.acknowledged {
		known[name] = true
	}
	return known
}

// run makes all writes and returns when they are answered.
func (s *storm) run(t *testing.T, c *cluster, writes int) {
	var workers sync.WaitGroup
	next := make(chan int)
	for range 16 {
		workers.Go(func() {
			for n := range next {
				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: marker(n)}, Data: map[string]string{"text": marker(n)}}
				if _, err := c.client.CoreV1().ConfigMaps("default").Create(context.Background(), object, metav1.CreateOptions{}); err != nil {
					t.Errorf("write %d: %v", n, err)
					continue
				}
				s.mu.Lock()
				s.acknowledged[marker(n)] = true
				s.mu.Unlock()
			}
		})
	}
	for n := range writes {
		next <- n
	}
	close(next)
	workers.Wait()
}

// image is what a disk may hold after a power cut at one moment.
type image struct {
	dir          string
	acknowledged map[string]bool
	what         string
}

// TestPowerCut takes images of the data directory in a storm of writes.
//
// mend stands still while one is taken, so that it is of one moment. What was
// acknowledged by then is known to have been synced; all behind the last
// acknowledged write in the log counts as not synced, and each of its sectors is
// dropped or kept by chance: all, none, or some of them, in any order. The database is
// that of this moment or an earlier one, as if nothing of it had been synced since.
func TestPowerCut(t *testing.T) {
	random := seeded(t)
	c := newCluster(t)
	c.start("--simulate", "1")
	writes, count := size(t, 300, 600, 2000), size(t, 3, 6, 50)
	s := &storm{acknowledged: map[string]bool{}}
	done := make(chan struct{})
	go func() { defer close(done); s.run(t, c, writes) }()
	var images []image
	for len(images) < count {
		images = append(images, c.cut(random, s, images))
		// Until a share of the writes has been made, or the storm is over.
		share := writes * len(images) / count
		c.eventually("the storm goes on", func() string {
			n := len(s.snapshot())
			select {
			case <-done:
				return ""
			default:
				return want(n >= share-random.IntN(writes/count), "%d of %d writes", n, share)
			}
		})
	}
	<-done
	if got := c.run("down", "--data-dir", c.data()); got.code != 0 {
		t.Fatalf("mend down: %+v", got)
	}
	for n, one := range images {
		c.boots(fmt.Sprintf("image %d, %s, %d acknowledged writes", n, one.what, len(one.acknowledged)), one)
	}
}

// cut takes an image.
func (c *cluster) cut(random *rand.Rand, s *storm, earlier []image) image {
	c.t.Helper()
	pid := c.mendPID()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	one := image{dir: filepath.Join(c.dir, fmt.Sprintf("image-%d", len(earlier))), acknowledged: s.snapshot()}
	err := copyData(c.data(), one.dir)
	if cont := unix.Kill(pid, unix.SIGCONT); cont != nil || err != nil {
		c.t.Fatal(err, cont)
	}
	one.what = loseUnsynced(c.t, random, one)
	if len(earlier) > 0 && random.IntN(2) == 0 {
		old := earlier[max(0, len(earlier)-1-random.IntN(3))]
		if err := copyFile(filepath.Join(old.dir, dbFile), filepath.Join(one.dir, dbFile)); err != nil {
			c.t.Fatal(err)
		}
		one.what += ", database of " + filepath.Base(old.dir)
	}
	return one
}

// loseUnsynced drops or tears what lies in the log behind the last acknowledged
// write.
func loseUnsynced(t *testing.T, random *rand.Rand, one image) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(one.dir, logDir, "*.wal"))
	if err != nil || len(files) != 1 {
		t.Fatalf("log files %v, %v: the storm is to fit into one", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	synced, end := frames(t, text, one.acknowledged, applied(t, one.dir))
	kinds := []string{"as it was", "all dropped", "torn"}
	kind := random.IntN(len(kinds))
	for at := synced; at < end; {
		next := min(end, (at/sector+1)*sector)
		if kind == 1 || kind == 2 && random.IntN(2) == 0 {
			clear(text[at:next])
		}
		at = next
	}
	if err := os.WriteFile(files[0], text, 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d bytes behind the synced log %s", end-synced, kinds[kind])
}

// applied is the last entry of the log that is in the database. It was synced in the
// log before it came there.
func applied(t *testing.T, dir string) uint64 {
	t.Helper()
	aside := filepath.Join(t.TempDir(), "db") // opening it may write to it
	if err := copyFile(filepath.Join(dir, dbFile), aside); err != nil {
		t.Fatal(err)
	}
	database := backend.NewDefaultBackend(zap.NewNop(), aside)
	defer database.Close()
	index, _ := schema.ReadConsistentIndex(database.ReadTx())
	return index
}

// frames walks the log: eight bytes of length (the top byte holds the padding), then
// the record. It returns the end of the last record that holds an acknowledged write
// or an entry up to applied, and the end of all records.
func frames(t *testing.T, text []byte, acknowledged map[string]bool, applied uint64) (synced, end int) {
	t.Helper()
	for at := 0; at+8 <= len(text); {
		field := bits.LittleEndian.Uint64(text[at:])
		if field == 0 {
			break
		}
		length := int(field & (1<<56 - 1))
		if field>>63 == 1 {
			length += int(field >> 56 & 7)
		}
		if at+8+length > len(text) {
			break
		}
		record := text[at+8 : at+8+length]
		at += 8 + length
		end = at
		if entry := entryIn(t, record, int(field>>56&7)); entry != 0 && entry <= applied {
			synced = at
		}
		if i := bytes.Index(record, []byte("marker-")); i >= 0 && i+len(marker(0)) <= len(record) && acknowledged[string(record[i:i+len(marker(0))])] {
			synced = at
		}
	}
	return synced, end
}

// entryIn is the index of the entry in a record, or 0 when it holds something else.
func entryIn(t *testing.T, record []byte, padding int) uint64 {
	t.Helper()
	const entryType = 2
	var outer walpb.Record
	if err := proto.Unmarshal(record[:len(record)-padding], &outer); err != nil {
		t.Fatal(err)
	}
	if outer.GetType() != entryType {
		return 0
	}
	var entry raftpb.Entry
	if err := proto.Unmarshal(outer.GetData(), &entry); err != nil {
		t.Fatal(err)
	}
	return entry.GetIndex()
}

// boots starts mend on an image and finds everything that was acknowledged.
func (c *cluster) boots(what string, one image) {
	c.t.Helper()
	after := *c
	after.dir = one.dir + ".run"
	if err := os.MkdirAll(after.dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(one.dir, after.data()); err != nil {
		c.t.Fatal(err)
	}
	args := []string{"up", "--simulate", "1", "--data-dir", after.data(), "--api-port", "0", "--kubeconfig", after.kubeconfig()}
	if got := after.run(args...); got.code != 0 {
		c.t.Errorf("%s: mend up: %+v", what, got)
		return
	}
	after.connect()
	list, err := after.client.CoreV1().ConfigMaps("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		c.t.Errorf("%s: %v", what, err)
		return
	}
	found := map[string]bool{}
	for i := range list.Items {
		found[list.Items[i].Data["text"]] = true
	}
	lost := 0
	for name := range one.acknowledged {
		if !found[name] {
			lost++
		}
	}
	if lost > 0 {
		c.t.Errorf("%s: %d acknowledged writes are lost", what, lost)
	}
	c.t.Logf("%s: %d found", what, len(found))
	if got := after.run("down", "--data-dir", after.data()); got.code != 0 {
		c.t.Errorf("%s: mend down: %+v", what, got)
	}
	if err := os.RemoveAll(after.dir); err != nil {
		c.t.Error(err)
	}
}

// copyData copies the regular files of a data directory that hold state.
func copyData(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case name == "run" || name == "logs" || name == "pod-logs":
			return fs.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		case !entry.Type().IsRegular() || filepath.Ext(name) == ".tmp":
			return nil
		}
		return copyFile(path, filepath.Join(to, name))
	})
}

// copyFile replaces to.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
