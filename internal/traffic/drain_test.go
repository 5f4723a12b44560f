package traffic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

const ms = time.Millisecond

func TestBusyConnections(t *testing.T) {
	tests := []struct {
		name string
		c    connection
		want bool
	}{
		{"connected a moment ago", connection{sinceReceived: 4 * ms, sinceSent: 4 * ms}, true},
		{"connected, and nothing asked since", connection{sinceReceived: time.Second, sinceSent: time.Second}, false},
		{"its first question, just now", connection{received: 100, sinceReceived: 4 * ms, sinceSent: 4 * ms}, true},
		{"its first question, long ago", connection{received: 100, sinceReceived: 20 * time.Second, sinceSent: 20 * time.Second}, true},
		{"answered long ago", connection{received: 100, sent: 1, sinceReceived: 5 * time.Second, sinceSent: 3 * time.Second}, false},
		{"answered at once, long ago", connection{received: 100, sent: 1, sinceReceived: 5 * time.Second, sinceSent: 5 * time.Second}, false},
		{"asked again, long after the answer", connection{received: 200, sent: 1, sinceReceived: 10 * time.Second, sinceSent: 15 * time.Second}, true},
		{"asked again at once, a moment ago", connection{received: 200, sent: 1, sinceReceived: 300 * ms, sinceSent: 308 * ms}, true},
		{"a word at once after the answer, then silence", connection{received: 200, sent: 1, sinceReceived: 3000 * ms, sinceSent: 3008 * ms}, false},
		{"an answer is under way", connection{received: 100, sent: 5, sinceReceived: 5 * time.Second, sinceSent: 4 * ms}, true},
		{"bytes are queued", connection{queued: true, received: 100, sent: 5, sinceReceived: 5 * time.Second, sinceSent: 3 * time.Second}, true},
	}
	for _, tt := range tests {
		if got := tt.c.isBusy(); got != tt.want {
			t.Errorf("%s: busy = %v", tt.name, got)
		}
	}
}

// film plays what a Pod's connections look like, one frame each 10 ms.
func film(t *testing.T, frames ...view) time.Duration {
	t.Helper()
	var took time.Duration
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := settleDown(ctx, func() (view, error) {
			i := min(int(time.Since(start)/(10*ms)), len(frames)-1)
			return frames[i], nil
		})
		if err != nil {
			t.Error(err)
		}
		took = time.Since(start)
	})
	return took
}

func TestSettlingDown(t *testing.T) {
	id := func(n uint32) socketID { return socketID{n, 0} }
	asked := connection{received: 100, sinceReceived: time.Second, sinceSent: time.Second}
	idle := connection{received: 100, sent: 1, sinceReceived: 2 * time.Second, sinceSent: time.Second}
	askedAgain := connection{received: 200, sent: 1, sinceReceived: time.Second, sinceSent: 2 * time.Second}
	with := func(of map[socketID]connection) view { return view{connections: of} }
	tests := []struct {
		name     string
		frames   []view
		atLeast  time.Duration
		unending bool
	}{
		{"nobody", []view{with(nil)}, landing, false},
		{"idle clients", []view{with(map[socketID]connection{id(1): idle})}, landing, false},
		{"a question, answered", append(slices.Repeat([]view{with(map[socketID]connection{id(1): asked})}, 30), with(map[socketID]connection{id(1): idle})), 300 * ms, false},
		{"a question, and the client hangs up", []view{with(map[socketID]connection{id(1): asked}), with(nil)}, 10 * ms, false},
		{"one question after another", []view{with(map[socketID]connection{id(1): asked}), with(map[socketID]connection{id(1): askedAgain})}, 10 * ms, false},
		{"a question that comes while packets land", append(slices.Repeat([]view{with(nil), with(map[socketID]connection{id(2): asked})}, 20), with(map[socketID]connection{id(2): idle})), 10 * ms, false},
		{"a question that comes later is not waited for", append(slices.Repeat([]view{with(nil)}, 7), with(map[socketID]connection{id(2): asked})), landing, false},
		{"one that was connecting is", append(slices.Repeat([]view{{halfOpen: 1}}, 10), append(slices.Repeat([]view{with(map[socketID]connection{id(2): asked})}, 20), with(map[socketID]connection{id(2): idle}))...), landing, false},
		{"a question that is never answered", []view{with(map[socketID]connection{id(1): asked})}, time.Minute, true},
		{"a connection that is never made", []view{{halfOpen: 1}}, firstWords, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			took := film(t, tt.frames...)
			if took < tt.atLeast || !tt.unending && took > 10*time.Second {
				t.Errorf("took %v, want %v or little more", took, tt.atLeast)
			}
		})
	}
}

// server is a real HTTP server in a network namespace of its own, and that one's path.
func server(t *testing.T) (path string, dial func() net.Conn) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	var ns netns.NsHandle
	inside := func(f func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if ns != 0 {
				if err := netns.Set(ns); err != nil {
					done <- err
					return
				}
			}
			done <- f()
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	var listener net.Listener
	inside(func() (err error) {
		if ns, err = netns.New(); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		err = netlink.LinkSetUp(lo)
		if err == nil {
			listener, err = net.Listen("tcp", "127.0.0.1:8080")
		}
		return err
	})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := time.ParseDuration(r.URL.Query().Get("after"))
		<-time.After(d)
		io.WriteString(w, "done")
	})}
	go srv.Serve(listener)
	t.Cleanup(func() { srv.Close(); ns.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", int(ns)), func() (conn net.Conn) {
		inside(func() (err error) {
			conn, err = net.DialTimeout("tcp", "127.0.0.1:8080", 5*time.Second)
			return err
		})
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

func send(t *testing.T, conn net.Conn, path string) {
	t.Helper()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		_, err = io.ReadAll(response.Body)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// drained waits for a drain and says how long it took.
func drained(t *testing.T, path string, limit time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	if err := drain(t.Context(), path, start.Add(limit)); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

func TestRealRequestsInFlight(t *testing.T) {
	path, dial := server(t)
	if took := drained(t, path, 5*time.Second); took > 2*time.Second {
		t.Errorf("took %v with no client", took)
	}
	idle := dial()
	send(t, idle, "/")
	receive(t, idle)
	quiet := dial()
	<-time.After(firstWords)
	if took := drained(t, path, 5*time.Second); took > 2*time.Second {
		t.Errorf("took %v with idle clients", took)
	}
	slow, again := dial(), dial()
	send(t, again, "/")
	receive(t, again)
	<-time.After(2 * tick)
	send(t, slow, "/?after=1s")
	send(t, again, "/?after=1500ms")
	answered := make(chan time.Time, 1)
	go func() {
		receive(t, slow)
		receive(t, again)
		answered <- time.Now()
	}()
	<-time.After(50 * ms)
	drained(t, path, 20*time.Second)
	if late := time.Since(<-answered); late > 3*time.Second {
		t.Errorf("the drain ended %v after the last answer", late)
	}
	send(t, quiet, "/?after=1m")
	<-time.After(50 * ms)
	if took := drained(t, path, 300*ms); took < 300*ms || took > 3*time.Second {
		t.Errorf("took %v with a limit of 300 ms", took)
	}
}

// The drain may end before the client has read the answer, but not before it was sent.
func TestADrainDoesNotEndBeforeTheAnswer(t *testing.T) {
	path, dial := server(t)
	conn := dial()
	send(t, conn, "/?after=700ms")
	<-time.After(50 * ms)
	drained(t, path, 20*time.Second)
	conn.SetReadDeadline(time.Now().Add(10 * ms))
	if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("there is no answer yet")
	}
}

// Requests one after another on a connection do not hold a Pod for ever.
func TestABusyClientIsNotWaitedForForever(t *testing.T) {
	path, dial := server(t)
	conn := dial()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				send(t, conn, "/?after=2ms")
				receive(t, conn)
			}
		}
	}()
	<-time.After(100 * ms)
	if took := drained(t, path, 20*time.Second); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	close(stop)
	<-done
}

func TestNoSuchNamespace(t *testing.T) {
	if err := drain(t.Context(), "/proc/self/fd/99999", time.Now().Add(time.Second)); err == nil {
		t.Error("no error")
	}
}
