package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// sh is a shell for `sh -c "..."` in probes and examples: commands of this image,
// joined by ; && || and newlines, quotes, $NAME ${NAME} $? $$, > and >> to a file,
// and `while COND; do ...; done`. Pipes, functions and command substitution are
// not there, and say so.
func sh(s streams, args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(s.err, `sh: this small shell has no prompt; use sh -c "command"`)
		return 2
	}
	// -c may come with others, as in -ec.
	if !strings.HasPrefix(args[0], "-") || !strings.Contains(args[0], "c") || len(args) < 2 {
		fmt.Fprintln(s.err, `sh: only sh -c "command" is supported`)
		return 2
	}
	words, err := split(args[1])
	if err == nil {
		var code int
		if code, err = (&shell{streams: s}).run(words); err == nil {
			return code
		}
	}
	var exit exitError
	if errors.As(err, &exit) {
		return int(exit)
	}
	fmt.Fprintf(s.err, "sh: %v\n", err)
	return 2
}

// exitError is the `exit` command on its way out of nested loops.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// word is one token: an operator, or text whose variables are not expanded yet.
// raw holds the parts of the text that single quotes protect.
type word struct {
	op   string
	text []part
}

type part struct {
	text   string
	expand bool
}

func (w word) isName(name string) bool {
	return w.op == "" && len(w.text) == 1 && w.text[0].expand && w.text[0].text == name
}

// split cuts a script into words and operators.
func split(script string) ([]word, error) {
	var words []word
	var current []part
	flush := func() {
		if current != nil {
			words = append(words, word{text: current})
			current = nil
		}
	}
	add := func(text string, expand bool) {
		if n := len(current); n > 0 && current[n-1].expand == expand {
			current[n-1].text += text
			return
		}
		current = append(current, part{text, expand})
	}
	for i := 0; i < len(script); i++ {
		rest := script[i:]
		switch c := script[i]; {
		case c == ' ' || c == '\t':
			flush()
		case c == '\'' || c == '"':
			end := strings.IndexByte(rest[1:], c)
			if end < 0 {
				return nil, errors.New("unterminated quoted string")
			}
			add(rest[1:1+end], c == '"')
			i += end + 1
		case c == '\\' && len(rest) > 1:
			add(rest[1:2], false)
			i++
		case operator(rest) != "":
			op := operator(rest)
			flush()
			words = append(words, word{op: strings.ReplaceAll(op, "\n", ";")})
			i += len(op) - 1
		default:
			add(rest[:1], true)
		}
	}
	flush()
	return words, nil
}

func operator(s string) string {
	for _, op := range []string{"&&", "||", ">>", ">", ";", "\n", "|", "&", "`", "$("} {
		if strings.HasPrefix(s, op) {
			return op
		}
	}
	return ""
}

type shell struct {
	streams
	last int // $?
}

// run executes a list of commands and returns the last one's exit code.
func (sh *shell) run(words []word) (int, error) {
	for len(words) > 0 {
		if words[0].op == ";" {
			words = words[1:]
			continue
		}
		var err error
		if words[0].isName("while") {
			words, err = sh.loop(words[1:])
		} else {
			words, err = sh.chain(words)
		}
		if err != nil {
			return sh.last, err
		}
	}
	return sh.last, nil
}

// loop runs `COND; do BODY; done` and returns what follows it.
func (sh *shell) loop(words []word) ([]word, error) {
	do := indexName(words, "do")
	if do < 0 {
		return nil, errors.New("while without do")
	}
	depth, end := 1, -1
	for i := do + 1; i < len(words) && end < 0; i++ {
		switch {
		case words[i].isName("while"):
			depth++
		case words[i].isName("done"):
			if depth--; depth == 0 {
				end = i
			}
		}
	}
	if end < 0 {
		return nil, errors.New("while without done")
	}
	for {
		code, err := sh.run(words[:do])
		if err != nil {
			return nil, err
		}
		if code != 0 {
			sh.last = 0
			return words[end+1:], nil
		}
		if _, err := sh.run(words[do+1 : end]); err != nil {
			return nil, err
		}
	}
}

func indexName(words []word, name string) int {
	for i, w := range words {
		if w.isName(name) {
			return i
		}
	}
	return -1
}

// chain runs commands joined by && and || up to a semicolon, and returns the rest.
func (sh *shell) chain(words []word) ([]word, error) {
	skip := false
	for {
		n := 0
		for n < len(words) && words[n].op != ";" && words[n].op != "&&" && words[n].op != "||" {
			n++
		}
		if !skip {
			if err := sh.simple(words[:n]); err != nil {
				return nil, err
			}
		}
		if n == len(words) {
			return nil, nil
		}
		op := words[n].op
		words = words[n+1:]
		if op == ";" {
			return words, nil
		}
		skip = (op == "&&") != (sh.last == 0)
	}
}

// simple runs one command with its redirections.
func (sh *shell) simple(words []word) error {
	out := sh.out
	var argv []string
	for i := 0; i < len(words); i++ {
		switch w := words[i]; w.op {
		case "":
			argv = append(argv, sh.expand(w))
		case ">", ">>":
			if i++; i == len(words) || words[i].op != "" {
				return errors.New("a file name is missing after " + w.op)
			}
			mode := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
			if w.op == ">>" {
				mode = os.O_CREATE | os.O_WRONLY | os.O_APPEND
			}
			f, err := os.OpenFile(sh.expand(words[i]), mode, 0o644)
			if err != nil {
				sh.last = fail(sh.streams, "sh", err)
				return nil
			}
			defer f.Close()
			out = f
		default:
			return fmt.Errorf("%q is not supported by this small shell", w.op)
		}
	}
	if len(argv) == 0 {
		return nil
	}
	return sh.call(streams{in: sh.in, out: out, err: sh.err}, argv)
}

func (sh *shell) call(s streams, argv []string) error {
	name, args := argv[0], argv[1:]
	if key, value, ok := strings.Cut(name, "="); ok && len(args) == 0 {
		sh.last = 0
		return os.Setenv(key, value)
	}
	switch name {
	case "exit":
		code := sh.last
		if len(args) > 0 {
			code, _ = strconv.Atoi(args[0])
		}
		return exitError(code)
	case ":":
		sh.last = 0
		return nil
	case "exec":
		if len(args) == 0 {
			return nil
		}
		if err := sh.call(s, args); err != nil {
			return err
		}
		return exitError(sh.last)
	}
	run, known := commands[strings.TrimPrefix(name, "/bin/")]
	if !known {
		fmt.Fprintf(sh.err, "sh: %s: not found\n", name)
		sh.last = 127
		return nil
	}
	sh.last = run(s, args)
	return nil
}

func (sh *shell) expand(w word) string {
	var b strings.Builder
	for _, p := range w.text {
		if !p.expand {
			b.WriteString(p.text)
			continue
		}
		b.WriteString(os.Expand(p.text, func(name string) string {
			switch name {
			case "?":
				return strconv.Itoa(sh.last)
			case "$":
				return strconv.Itoa(os.Getpid())
			}
			return os.Getenv(name)
		}))
	}
	return b.String()
}
