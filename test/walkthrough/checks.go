package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// check is what a step expects: a sentence for people, and the test.
type check struct {
	want  string
	holds func(w *world, text string) error
}

// says expects exactly these lines, each of which may hold names in braces.
func says(lines ...string) check {
	return check{want: "as the document shows", holds: func(w *world, text string) error {
		if want := w.fill(strings.Join(lines, "\n")); strings.TrimSpace(text) != want {
			return fmt.Errorf("want %q", want)
		}
		return nil
	}}
}

// shows expects every pattern to be found somewhere.
func shows(want string, patterns ...string) check {
	return check{want: want, holds: func(w *world, text string) error {
		for _, pattern := range patterns {
			found, err := regexp.MatchString("(?m)"+w.fill(pattern), text)
			if err != nil {
				return err
			}
			if !found {
				return fmt.Errorf("no match for %q", w.fill(pattern))
			}
		}
		return nil
	}}
}

// lacks expects that a pattern is nowhere, beside what other checks want.
func (c check) lacks(pattern string) check {
	return c.and(func(w *world, text string) error {
		if found := regexp.MustCompile("(?m)" + w.fill(pattern)).FindString(text); found != "" {
			return fmt.Errorf("there should be no %q", found)
		}
		return nil
	})
}

// rows expects a header line and then exactly n rows.
func (c check) rows(n int) check {
	return c.and(func(_ *world, text string) error {
		if got := strings.Count(strings.TrimSpace(text), "\n"); got != n {
			return fmt.Errorf("%d rows, want %d", got, n)
		}
		return nil
	})
}

func (c check) and(more func(*world, string) error) check {
	first := c.holds
	c.holds = func(w *world, text string) error {
		if err := first(w, text); err != nil {
			return err
		}
		return more(w, text)
	}
	return c
}

// livePID expects a line with a process id, and that this process exists.
func livePID(want string) check {
	return shows(want, `^\d+$`).and(func(_ *world, text string) error {
		if _, err := os.Stat("/proc/" + strings.Fields(text)[0]); err != nil {
			return fmt.Errorf("no such process: %w", err)
		}
		return nil
	})
}
