package podspec

import "strings"

// Expand replaces $(NAME) by what lookup knows. An unknown name stays as it is,
// $$ is a plain $ ("$$(NAME)" gives "$(NAME)"), and a $ that begins neither stays.
func Expand(text string, lookup func(name string) (string, bool)) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		switch {
		case strings.HasPrefix(after, "$"):
			out.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "("):
			name, rest, closed := strings.Cut(after[1:], ")")
			if !closed {
				out.WriteString("$(")
				text = after[1:]
				continue
			}
			if value, ok := lookup(name); ok {
				out.WriteString(value)
			} else {
				out.WriteString("$(" + name + ")")
			}
			text = rest
		default:
			out.WriteByte('$')
			text = after
		}
	}
}

// expandAll expands each of texts by the environment.
func expandAll(texts []string, env []EnvVar) []string {
	if len(texts) == 0 {
		return nil
	}
	values := make(map[string]string, len(env))
	for _, e := range env {
		values[e.Name] = e.Value
	}
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = Expand(t, func(name string) (string, bool) {
			v, ok := values[name]
			return v, ok
		})
	}
	return out
}
