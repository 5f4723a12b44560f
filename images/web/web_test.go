package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The test's own program is a command when it is called as one.
func TestMain(m *testing.M) {
	if _, known := commands[filepath.Base(os.Args[0])]; known {
		main()
	}
	os.Exit(m.Run())
}

// It needs a process of its own, in which nothing else goes on.
func TestSleepInfinityDoesNotEnd(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	command := exec.CommandContext(limited, self)
	command.Args = []string{"sleep", "infinity"}
	out, err := command.CombinedOutput()
	if !errors.Is(limited.Err(), context.DeadlineExceeded) || len(out) > 0 {
		t.Errorf("sleep infinity ended by itself (%v): %s", err, out)
	}
}

func TestTheShellRunsWhatProbesAndExamplesUse(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("NAME", "mend")
	t.Setenv("DIR", dir)
	for script, want := range map[string]struct {
		out  string
		code int
	}{
		`echo hello`:                             {"hello\n", 0},
		`echo -n a; echo b`:                      {"ab\n", 0},
		`echo $NAME ${NAME}x '$NAME' "in $NAME"`: {"mend mendx $NAME in mend\n", 0},
		`exit 3`:                                 {"", 3},
		`false; echo $?`:                         {"1\n", 0},
		`false && echo no || echo yes`:           {"yes\n", 0},
		`true && echo yes || echo no`:            {"yes\n", 0},
		`false`:                                  {"", 1},
		`nothing-like-this`:                      {"sh: nothing-like-this: not found\n", 127},
		`X=1; echo $X`:                           {"1\n", 0},
		`while true; do echo once; exit 4; done; echo never`: {"once\n", 4},
		`while false; do echo never; done; echo after`:       {"after\n", 0},
		`echo one > $DIR/f; echo two >> $DIR/f; cat $DIR/f`:  {"one\ntwo\n", 0},
		`cat $DIR/missing`:           {"cat: " + dir + "/missing: no such file or directory\n", 1},
		`ls $DIR`:                    {"f\n", 0},
		`touch $DIR/g && ls $DIR`:    {"f\ng\n", 0},
		"echo a\necho b":             {"a\nb\n", 0},
		`exec echo last; echo never`: {"last\n", 0},
		`/bin/echo by path`:          {"by path\n", 0},
		`echo a | cat`:               {"sh: \"|\" is not supported by this small shell\n", 2},
		`echo 'open`:                 {"sh: unterminated quoted string\n", 2},
		`while true; do echo x`:      {"sh: while without done\n", 2},
		`sleep 0; sleep nonsense`:    {"sleep: invalid time interval \"nonsense\"\n", 1},
		`kill -9 nonsense`:           {"kill: \"nonsense\" is not a process id\n", 1},
	} {
		// Some scripts build on a file of another: each begins with the same.
		os.Remove(filepath.Join(dir, "g"))
		if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		code := sh(streams{in: strings.NewReader(""), out: &out, err: &out}, []string{"-c", script})
		if out.String() != want.out || code != want.code {
			t.Errorf("sh -c %q printed %q and gave %d, want %q and %d", script, out.String(), code, want.out, want.code)
		}
	}
}

// behaving is a server of version 9 on Pod p whose exit and log are recorded.
func behaving() (*server, chan int, *bytes.Buffer) {
	exits, log := make(chan int, 1), &bytes.Buffer{}
	return &server{
		version: "9", pod: "p", started: time.Now(),
		exit: func(code int) { exits <- code }, logLine: func(line string) { fmt.Fprintln(log, line) },
	}, exits, log
}

func request(h http.Handler, method, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Code, w.Body.String()
}

func TestTheServerSaysWhoItIs(t *testing.T) {
	s, _, log := behaving()
	h := s.handler()
	for path, want := range map[string]string{"/": "web 9 on p\n", "/version": "9\n", "/hostname": "p\n", "/healthz": "ok\n"} {
		if code, body := request(h, "GET", path); code != http.StatusOK || body != want {
			t.Errorf("GET %s is %d %q, want %q", path, code, body, want)
		}
	}
	if code, _ := request(h, "GET", "/nothing"); code != http.StatusNotFound {
		t.Errorf("an unknown path gives %d", code)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 5 || !strings.Contains(log.String(), "GET /nothing 404") {
		t.Errorf("the access log of 5 requests is:\n%s", log)
	}
}

func TestTheServerFailsItsProbesWhenTold(t *testing.T) {
	s, _, _ := behaving()
	h := s.handler()
	for _, step := range []struct {
		method, path string
		want         int
	}{
		{"POST", "/healthz/fail", 200}, {"GET", "/healthz", 503}, {"GET", "/", 200},
		{"POST", "/healthz/ok", 200}, {"GET", "/healthz", 200}, {"POST", "/healthz/maybe", 400},
	} {
		if code, body := request(h, step.method, step.path); code != step.want {
			t.Errorf("%s %s is %d %q, want %d", step.method, step.path, code, body, step.want)
		}
	}
}

func TestTheServerExitsLeaksAndIsSlowWhenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, exits, _ := behaving()
		h := s.handler()
		if code, body := request(h, "POST", "/exit?code=7"); code != http.StatusOK {
			t.Errorf("POST /exit is %d %q", code, body)
		}
		if got := <-exits; got != 7 {
			t.Errorf("it exited with %d, want 7", got)
		}
		if code, body := request(h, "POST", "/leak?mb=2"); code != http.StatusOK {
			t.Errorf("POST /leak is %d %q", code, body)
		}
		if code, body := request(h, "POST", "/slow?ms=5000"); code != http.StatusOK {
			t.Errorf("POST /slow is %d %q", code, body)
		}
		begin := time.Now()
		_, body := request(h, "GET", "/status")
		if waited := time.Since(begin); waited != 5*time.Second {
			t.Errorf("a slow answer took %v, want 5s", waited)
		}
		var status map[string]any
		if err := json.Unmarshal([]byte(body), &status); err != nil || status["leakedMiB"] != 2.0 || status["delay"] != "5s" {
			t.Errorf("the status is %s (%v)", body, err)
		}
		for _, path := range []string{"/exit?code=256", "/exit?code=x", "/leak?mb=-1", "/slow?ms=x", "/sigterm/x"} {
			if code, body := request(h, "POST", path); code != http.StatusBadRequest {
				t.Errorf("POST %s is %d %q, want 400", path, code, body)
			}
		}
	})
}

func TestASlowAnswerEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := behaving()
		s.delay.Store(int64(time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		s.handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("it waited %v for a client that was gone after 1s", waited)
		}
	})
}

func TestCurlReportsWhatItGot(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusTeapot)
		}
		fmt.Fprint(w, r.Method)
	}))
	defer srv.Close()
	for args, want := range map[string]struct {
		out  string
		code int
	}{
		srv.URL:                                {"GET", 0},
		"-s -X POST " + srv.URL:                {"POST", 0},
		"-m 5 " + srv.URL + "/bad":             {"GET", 22},
		strings.TrimPrefix(srv.URL, "http://"): {"GET", 0},
		"":                                     {"curl: no URL specified\n", 1},
		"-X":                                   {"curl: option -X: requires parameter\n", 1},
	} {
		var out bytes.Buffer
		code := curl(streams{out: &out, err: &out}, strings.Fields(args))
		if out.String() != want.out || code != want.code {
			t.Errorf("curl %s printed %q and gave %d, want %q and %d", args, out.String(), code, want.out, want.code)
		}
	}
	var out bytes.Buffer
	if code := curl(streams{out: &out, err: &out}, []string{"127.0.0.1:1"}); code != 7 {
		t.Errorf("curl to a closed port gave %d %s, want 7", code, &out)
	}
}
