package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A script is compiled to a list of steps, so that a program that sleeps can be
// left and taken up again without a goroutine that waits for it. The language is
// the part of sh that examples use: simple commands with quotes, $NAME, $(…),
// $((…)), pipes and > >> redirections, joined by ; && || and newlines; while,
// until, for and if.

type stepKind int

const (
	stepRun      stepKind = iota
	stepJump              // to target
	stepJumpOK            // to target if the last status is 0
	stepJumpFail          // to target if it is not
	stepForInit           // push the expanded words
	stepForNext           // set name to the next word, or pop and jump to target
	stepClear             // status becomes 0
)

type step struct {
	kind   stepKind
	pipe   []simple
	negate bool
	target int
	name   string
	words  []word
}

// simple is one command: words and where its output goes.
type simple struct {
	words []word
	out   redirect
	err   redirect
	in    word // read from this file, if any
}

type redirect struct {
	file   word
	add    bool
	stdout bool // 2>&1
	stderr bool // >&2
}

type word []part

type partKind int

const (
	partText       partKind = iota
	partVariable            // $NAME
	partCommand             // $(…)
	partArithmetic          // $((…))
)

type part struct {
	kind   partKind
	text   string
	quoted bool
}

// literal is a word that stands for itself.
func literal(text string) word { return word{{text: text, quoted: true}} }

// isKeyword reports whether the word is this text, unquoted.
func (w word) isKeyword(texts ...string) bool {
	return len(w) == 1 && w[0].kind == partText && !w[0].quoted && slices.Contains(texts, w[0].text)
}

// token is an operator or a word.
type token struct {
	op   string
	word word
}

// errEndOfScript says that more lines could make the script whole.
var errEndOfScript = errors.New("syntax error: unexpected end of file")

type compiler struct {
	tokens []token
	steps  []step
}

// compile turns a script into steps, or says what is wrong with it.
func compile(script string) ([]step, error) {
	tokens, err := lex(script)
	if err != nil {
		return nil, err
	}
	c := &compiler{tokens: tokens}
	if err := c.list(); err != nil {
		return nil, err
	}
	if len(c.tokens) > 0 {
		return nil, fmt.Errorf("syntax error: unexpected %q", c.tokens[0].text())
	}
	return c.steps, nil
}

func (t token) text() string {
	if t.op != "" || len(t.word) == 0 {
		return t.op
	}
	return t.word[0].text
}

// list compiles commands up to the end or one of the closing keywords.
func (c *compiler) list(closing ...string) error {
	for {
		c.skipSeparators()
		if len(c.tokens) == 0 {
			if len(closing) > 0 {
				return errEndOfScript
			}
			return nil
		}
		if c.tokens[0].word.isKeyword(closing...) {
			return nil
		}
		if c.tokens[0].word.isKeyword("do", "done", "then", "fi", "else", "elif") {
			return fmt.Errorf("syntax error: unexpected %q", c.tokens[0].text())
		}
		if err := c.andOr(); err != nil {
			return err
		}
	}
}

func (c *compiler) skipSeparators() {
	for len(c.tokens) > 0 && (c.tokens[0].op == ";" || c.tokens[0].op == "\n") {
		c.tokens = c.tokens[1:]
	}
}

func (c *compiler) accept(op string) bool {
	if len(c.tokens) > 0 && c.tokens[0].op == op {
		c.tokens = c.tokens[1:]
		return true
	}
	return false
}

func (c *compiler) expect(keyword string) error {
	if len(c.tokens) == 0 {
		return errEndOfScript
	}
	if !c.tokens[0].word.isKeyword(keyword) {
		return fmt.Errorf("syntax error: %q expected", keyword)
	}
	c.tokens = c.tokens[1:]
	return nil
}

// emit adds a step and returns its position, to fill in the target later.
func (c *compiler) emit(s step) int {
	c.steps = append(c.steps, s)
	return len(c.steps) - 1
}

func (c *compiler) land(at int) { c.steps[at].target = len(c.steps) }

// andOr is commands joined by && and ||, which bind equally and to the left.
func (c *compiler) andOr() error {
	if err := c.command(); err != nil {
		return err
	}
	for {
		kind := stepJumpFail
		switch {
		case c.accept("&&"):
		case c.accept("||"):
			kind = stepJumpOK
		default:
			return nil
		}
		for c.accept("\n") {
		}
		skip := c.emit(step{kind: kind})
		if err := c.command(); err != nil {
			return err
		}
		c.land(skip)
	}
}

func (c *compiler) command() error {
	if len(c.tokens) == 0 {
		return errEndOfScript
	}
	first := c.tokens[0].word
	switch {
	case first.isKeyword("while", "until"):
		return c.loop()
	case first.isKeyword("for"):
		return c.forLoop()
	case first.isKeyword("if"):
		c.tokens = c.tokens[1:]
		return c.conditional()
	}
	return c.pipeline()
}

func (c *compiler) loop() error {
	leave := stepJumpFail
	if c.tokens[0].word.isKeyword("until") {
		leave = stepJumpOK
	}
	c.tokens = c.tokens[1:]
	start := len(c.steps)
	if err := c.list("do"); err != nil {
		return err
	}
	out := c.emit(step{kind: leave})
	if err := c.body(start); err != nil {
		return err
	}
	c.land(out)
	c.emit(step{kind: stepClear})
	return nil
}

// body is `do … done`, with a jump back to start.
func (c *compiler) body(start int) error {
	c.skipSeparators()
	if err := c.expect("do"); err != nil {
		return err
	}
	if err := c.list("done"); err != nil {
		return err
	}
	c.emit(step{kind: stepJump, target: start})
	return c.expect("done")
}

func (c *compiler) forLoop() error {
	c.tokens = c.tokens[1:]
	if len(c.tokens) == 0 || len(c.tokens[0].word) == 0 {
		return errors.New("syntax error: for without a name")
	}
	name := c.tokens[0].text()
	c.tokens = c.tokens[1:]
	if err := c.expect("in"); err != nil {
		return err
	}
	var words []word
	for len(c.tokens) > 0 && c.tokens[0].op == "" {
		words = append(words, c.tokens[0].word)
		c.tokens = c.tokens[1:]
	}
	c.emit(step{kind: stepForInit, words: words})
	next := c.emit(step{kind: stepForNext, name: name})
	if err := c.body(next); err != nil {
		return err
	}
	c.land(next)
	return nil
}

// conditional is what follows `if` or `elif`.
func (c *compiler) conditional() error {
	if err := c.list("then"); err != nil {
		return err
	}
	c.tokens = c.tokens[1:]
	otherwise := c.emit(step{kind: stepJumpFail})
	if err := c.list("elif", "else", "fi"); err != nil {
		return err
	}
	end := c.emit(step{kind: stepJump})
	c.land(otherwise)
	keyword := c.tokens[0].text()
	c.tokens = c.tokens[1:]
	var err error
	switch keyword {
	case "elif":
		err = c.conditional()
	case "else":
		if err = c.list("fi"); err == nil {
			err = c.expect("fi")
		}
	default:
		c.emit(step{kind: stepClear})
	}
	c.land(end)
	return err
}

func (c *compiler) pipeline() error {
	run := step{kind: stepRun}
	if c.tokens[0].word.isKeyword("!") {
		run.negate = true
		c.tokens = c.tokens[1:]
	}
	for {
		command, err := c.simple()
		if err != nil {
			return err
		}
		run.pipe = append(run.pipe, command)
		if !c.accept("|") {
			c.emit(run)
			return nil
		}
	}
}

func (c *compiler) simple() (simple, error) {
	var command simple
	for len(c.tokens) > 0 {
		next := c.tokens[0]
		if next.op == "" {
			command.words = append(command.words, next.word)
			c.tokens = c.tokens[1:]
			continue
		}
		done, err := c.redirect(&command)
		if err != nil {
			return command, err
		}
		if done {
			break
		}
	}
	if len(command.words) == 0 {
		if len(c.tokens) > 0 {
			return command, fmt.Errorf("syntax error: unexpected %q", c.tokens[0].text())
		}
		return command, errEndOfScript
	}
	return command, nil
}

// redirect reads one redirection; done means that the command ends here.
func (c *compiler) redirect(command *simple) (done bool, err error) {
	op := c.tokens[0].op
	switch op {
	case "2>&1":
		command.err = redirect{stdout: true}
	case ">&2", "1>&2":
		command.out = redirect{stderr: true}
	case ">", ">>", "2>", "2>>", "<":
		if len(c.tokens) < 2 || c.tokens[1].op != "" {
			return false, fmt.Errorf("syntax error: a file name is missing after %q", op)
		}
		file := c.tokens[1].word
		c.tokens = c.tokens[1:]
		target := redirect{file: file, add: strings.HasSuffix(op, ">>")}
		switch op[0] {
		case '<':
			command.in = file
		case '2':
			command.err = target
		default:
			command.out = target
		}
	case "&":
		return false, errors.New("syntax error: background commands are not simulated")
	default:
		return true, nil
	}
	c.tokens = c.tokens[1:]
	return false, nil
}
