package sim

import (
	"errors"
	"strings"
)

// operators, longest first where one begins another.
var operators = []string{"2>&1", "1>&2", ">&2", "2>>", "2>", "&&", "||", ">>", ">", "<", ";", "\n", "|", "&"}

type lexer struct {
	rest    string
	tokens  []token
	current word
}

// lex cuts a script into operators and words.
func lex(script string) ([]token, error) {
	l := &lexer{rest: script}
	for l.rest != "" {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	l.flush()
	return l.tokens, nil
}

func (l *lexer) flush() {
	if l.current != nil {
		l.tokens = append(l.tokens, token{word: l.current})
		l.current = nil
	}
}

func (l *lexer) next() error {
	switch c := l.rest[0]; {
	case c == ' ' || c == '\t' || c == '\r':
		l.flush()
		l.rest = l.rest[1:]
		return nil
	case c == '#' && l.current == nil:
		l.comment()
		return nil
	case c == '\'':
		return l.singleQuoted()
	case c == '"':
		l.rest = l.rest[1:]
		return l.doubleQuoted()
	case c == '\\':
		l.escape()
		return nil
	case c == '$' || c == '`':
		return l.expansion(false)
	}
	if op := l.operator(); op != "" {
		l.flush()
		l.tokens = append(l.tokens, token{op: op})
		l.rest = l.rest[len(op):]
		return nil
	}
	l.add(part{text: l.rest[:1]})
	l.rest = l.rest[1:]
	return nil
}

// operator is the operator that comes next, if one does. "2>" is one only where
// a word begins: in "a2>b" the 2 belongs to a.
func (l *lexer) operator() string {
	for _, op := range operators {
		if strings.HasPrefix(l.rest, op) && (l.current == nil || op[0] != '2' && op[0] != '1') {
			return op
		}
	}
	return ""
}

func (l *lexer) comment() {
	end := strings.IndexByte(l.rest, '\n')
	if end < 0 {
		end = len(l.rest)
	}
	l.rest = l.rest[end:]
}

func (l *lexer) singleQuoted() error {
	end := strings.IndexByte(l.rest[1:], '\'')
	if end < 0 {
		return errors.New("syntax error: unterminated quoted string")
	}
	l.add(part{text: l.rest[1 : 1+end], quoted: true})
	l.rest = l.rest[end+2:]
	return nil
}

func (l *lexer) escape() {
	if strings.HasPrefix(l.rest, "\\\n") {
		l.rest = l.rest[2:] // the line goes on
		return
	}
	if len(l.rest) > 1 {
		l.add(part{text: l.rest[1:2], quoted: true})
		l.rest = l.rest[2:]
		return
	}
	l.rest = ""
}

func (l *lexer) doubleQuoted() error {
	l.add(part{quoted: true}) // "" is a word, too
	for l.rest != "" {
		switch c := l.rest[0]; {
		case c == '"':
			l.rest = l.rest[1:]
			return nil
		case c == '\\' && len(l.rest) > 1 && strings.ContainsRune("\"\\$`", rune(l.rest[1])):
			l.escape()
		case c == '$' || c == '`':
			if err := l.expansion(true); err != nil {
				return err
			}
		default:
			l.add(part{text: l.rest[:1], quoted: true})
			l.rest = l.rest[1:]
		}
	}
	return errors.New("syntax error: unterminated quoted string")
}

// add joins plain text to plain text before it.
func (l *lexer) add(p part) {
	if n := len(l.current); n > 0 && p.kind == partText && l.current[n-1].kind == partText && l.current[n-1].quoted == p.quoted {
		l.current[n-1].text += p.text
		return
	}
	l.current = append(l.current, p)
}

// expansion reads $NAME, ${NAME}, $(…), $((…)) or `…`.
func (l *lexer) expansion(quoted bool) error {
	switch {
	case l.rest[0] == '`':
		end := strings.IndexByte(l.rest[1:], '`')
		if end < 0 {
			return errors.New("syntax error: unterminated `")
		}
		l.add(part{kind: partCommand, text: l.rest[1 : 1+end], quoted: quoted})
		l.rest = l.rest[end+2:]
	case strings.HasPrefix(l.rest, "$(("):
		return l.enclosed("$((", "))", partArithmetic, quoted)
	case strings.HasPrefix(l.rest, "$("):
		return l.enclosed("$(", ")", partCommand, quoted)
	case strings.HasPrefix(l.rest, "${"):
		return l.enclosed("${", "}", partVariable, quoted)
	default:
		n := 1
		for n < len(l.rest) && isNameByte(l.rest[n], n == 1) {
			n++
		}
		if n == 1 && len(l.rest) > 1 && strings.ContainsRune("?$#@*0123456789", rune(l.rest[1])) {
			n = 2
		}
		if n == 1 {
			l.add(part{text: "$", quoted: quoted})
		} else {
			l.add(part{kind: partVariable, text: l.rest[1:n], quoted: quoted})
		}
		l.rest = l.rest[n:]
	}
	return nil
}

func isNameByte(c byte, first bool) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || !first && '0' <= c && c <= '9'
}

// enclosed reads up to the closing text that matches, counting nested brackets.
func (l *lexer) enclosed(opening, closing string, kind partKind, quoted bool) error {
	depth := 0
	for i := len(opening); i < len(l.rest); i++ {
		if depth == 0 && strings.HasPrefix(l.rest[i:], closing) {
			l.add(part{kind: kind, text: l.rest[len(opening):i], quoted: quoted})
			l.rest = l.rest[i+len(closing):]
			return nil
		}
		switch l.rest[i] {
		case '(', '{':
			depth++
		case ')', '}':
			depth--
		}
	}
	return errors.New("syntax error: unterminated " + opening)
}
