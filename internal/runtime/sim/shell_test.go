package sim

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// script is a shell that runs text, with its output in the buffers.
func script(t *testing.T, text string, mounts ...*runtimeapi.Mount) (sh *shell, stdout, stderr *bytes.Buffer) {
	t.Helper()
	steps, err := compile(text)
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	return &shell{
		steps:  steps,
		env:    map[string]string{"HOSTNAME": "web-1", "GREETING": "hello"},
		files:  &files{mounts: mounts, own: &memory{}, shared: &memory{}},
		stdin:  strings.NewReader("typed\n"),
		stdout: stdout, stderr: stderr,
		host: &host{now: func() time.Time { return time.Unix(0, 0) }},
	}, stdout, stderr
}

func TestScripts(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		stdout string
		stderr string
		status int
	}{
		"words are joined by one space":         {script: `echo a   b`, stdout: "a b\n"},
		"quotes keep spaces":                    {script: `echo "a   b" 'c  d'`, stdout: "a   b c  d\n"},
		"single quotes keep dollars":            {script: `echo '$GREETING' "$GREETING"`, stdout: "$GREETING hello\n"},
		"braces and defaults":                   {script: `echo ${GREETING}s ${NONE:-nobody}`, stdout: "hellos nobody\n"},
		"status of the last command":            {script: `false; echo $?`, stdout: "1\n"},
		"exit ends everything with its code":    {script: `echo a; exit 3; echo b`, stdout: "a\n", status: 3},
		"and stops at a failure":                {script: `false && echo no; echo yes`, stdout: "yes\n"},
		"or goes on at a failure":               {script: `false || echo yes`, stdout: "yes\n"},
		"and-or binds to the left":              {script: `true || echo no && echo yes`, stdout: "yes\n"},
		"negation":                              {script: `! false && echo yes`, stdout: "yes\n"},
		"unknown command":                       {script: `nope`, stderr: "sh: nope: not found\n", status: 127},
		"command substitution":                  {script: `echo "on $(hostname)"`, stdout: "on web-1\n"},
		"backquotes":                            {script: "echo `hostname`", stdout: "web-1\n"},
		"arithmetic":                            {script: `i=2; i=$((i+3)); echo $((i * 2))`, stdout: "10\n"},
		"while loop":                            {script: `i=0; while [ $i -lt 3 ]; do echo $i; i=$((i+1)); done; echo end`, stdout: "0\n1\n2\nend\n"},
		"until loop":                            {script: `until test -f /tmp/x; do touch /tmp/x; echo once; done`, stdout: "once\n"},
		"for loop":                              {script: "for i in a b\ndo\n echo $i\ndone", stdout: "a\nb\n"},
		"for over seq":                          {script: `for i in $(seq 3); do echo -n $i; done`, stdout: "123"},
		"nested loops":                          {script: `for a in 1 2; do for b in x y; do echo $a$b; done; done`, stdout: "1x\n1y\n2x\n2y\n"},
		"if":                                    {script: `if true; then echo a; else echo b; fi`, stdout: "a\n"},
		"else":                                  {script: `if false; then echo a; else echo b; fi`, stdout: "b\n"},
		"elif":                                  {script: `if false; then echo a; elif true; then echo b; else echo c; fi`, stdout: "b\n"},
		"if without a branch taken succeeds":    {script: `if false; then echo a; fi; echo $?`, stdout: "0\n"},
		"pipe":                                  {script: `echo piped | cat`, stdout: "piped\n"},
		"standard input":                        {script: `cat`, stdout: "typed\n"},
		"redirection and reading back":          {script: `echo one > /f; echo two >> /f; cat /f; cat < /f`, stdout: "one\ntwo\none\ntwo\n"},
		"errors to output":                      {script: `cat /none 2>&1`, stdout: "cat: /none: No such file or directory\n", status: 1},
		"errors thrown away":                    {script: `cat /none 2>/dev/null`, status: 1},
		"output to errors":                      {script: `echo bad >&2`, stderr: "bad\n"},
		"removed files are gone":                {script: `touch /tmp/h; rm /tmp/h; cat /tmp/h`, stderr: "cat: /tmp/h: No such file or directory\n", status: 1},
		"ls lists what was written":             {script: `touch /data/b /data/a; ls /data`, stdout: "a\nb\n"},
		"nested sh":                             {script: `sh -c 'echo in; exit 4'; echo $?`, stdout: "in\n4\n"},
		"exec replaces the shell":               {script: `exec echo last; echo never`, stdout: "last\n"},
		"comment":                               {script: "echo a # b\n# c\necho d", stdout: "a\nd\n"},
		"digits in a word are no redirection":   {script: `echo a2`, stdout: "a2\n"},
		"environment assignment before command": {script: `A=1; echo "$A"`, stdout: "1\n"},
		"date is the clock's":                   {script: `date`, stdout: "Thu Jan  1 00:00:00 UTC 1970\n"},
		"printf":                                {script: `printf '%s-%d\n' a 7`, stdout: "a-7\n"},
	} {
		t.Run(name, func(t *testing.T) {
			sh, stdout, stderr := script(t, test.script)
			if pause, done := sh.run(); !done {
				t.Fatalf("script sleeps %v, want its end", pause)
			}
			if stdout.String() != test.stdout || stderr.String() != test.stderr || sh.status != test.status {
				t.Errorf("got stdout %q stderr %q status %d\nwant stdout %q stderr %q status %d",
					stdout, stderr, sh.status, test.stdout, test.stderr, test.status)
			}
		})
	}
}

func TestScriptsThatAreWrongSaySo(t *testing.T) {
	for text, want := range map[string]string{
		`echo "a`:              "unterminated quoted string",
		`while true; do echo`:  "unexpected end of file",
		`done`:                 `unexpected "done"`,
		`sleep 5 &`:            "background commands are not simulated",
		`echo >`:               "a file name is missing",
		`if true; echo a; fi`:  `unexpected "fi"`,
		`for x of a; do :done`: `"in" expected`,
	} {
		if _, err := compile(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("compile(%q) = %v, want an error with %q", text, err, want)
		}
	}
}

func TestScriptIsLeftAtASleepAndTakenUpAgain(t *testing.T) {
	sh, stdout, _ := script(t, `while true; do echo tick; sleep 2.5; done`)
	for range 3 {
		if pause, done := sh.run(); done || pause != 2500*time.Millisecond {
			t.Fatalf("run = %v, %v; want a sleep of 2.5 s", pause, done)
		}
	}
	if got := strings.Count(stdout.String(), "tick\n"); got != 3 {
		t.Errorf("%d ticks, want 3", got)
	}
}

func TestLoopWithoutASleepIsMadeToSleep(t *testing.T) {
	sh, _, _ := script(t, `while true; do :; done`)
	if pause, done := sh.run(); done || pause != spin {
		t.Errorf("run = %v, %v; want a sleep of %v", pause, done, spin)
	}
}

func TestFilesBehindMounts(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return at
	}
	write("key", "value")
	message := write("message", "")
	mounts := []*runtimeapi.Mount{
		{ContainerPath: "/etc/config", HostPath: dir, Readonly: true},
		{ContainerPath: "/dev/termination-log", HostPath: message},
		{ContainerPath: "/scratch", HostPath: dir},
	}
	sh, stdout, stderr := script(t, `
cat /etc/config/key; echo
echo no > /etc/config/key
echo why > /dev/termination-log
echo mine > /scratch/key; cat /scratch/key
ls /scratch`, mounts...)
	sh.run()
	if got, want := stdout.String(), "value\nmine\nkey\nmessage\n"; got != want {
		t.Errorf("stdout = %q, want %q", got, want)
	}
	if !strings.Contains(stderr.String(), "permission denied") {
		t.Errorf("stderr = %q, want that a read-only mount refuses", stderr)
	}
	if got, _ := os.ReadFile(message); string(got) != "why\n" {
		t.Errorf("termination message on the host = %q, want why", got)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "key")); string(got) != "value" {
		t.Errorf("host file behind a directory mount = %q, must not change", got)
	}
}
