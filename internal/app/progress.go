package app

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Step is one line of a start or stop as it is told to whoever waits for it, one
// JSON object per line. Exactly one of the fields is set.
type Step struct {
	Doing string `json:"doing,omitempty"` // what begins now
	Note  string `json:"note,omitempty"`  // worth telling however fast it went
	Error string `json:"error,omitempty"` // the last step: it failed
	Done  bool   `json:"done,omitempty"`  // the last step: it is complete
}

// Teller passes steps on. A nil Teller is silent.
type Teller func(Step)

// Doing tells what begins now.
func (t Teller) Doing(what string) { t.tell(Step{Doing: what}) }

// Note tells something that a person should know.
func (t Teller) Note(format string, args ...any) { t.tell(Step{Note: fmt.Sprintf(format, args...)}) }

func (t Teller) tell(step Step) {
	if t != nil {
		t(step)
	}
}

// Finish tells how it ended.
func (t Teller) Finish(err error) {
	if err != nil {
		t.tell(Step{Error: err.Error()})
		return
	}
	t.tell(Step{Done: true})
}

// TellTo returns a Teller that writes to w. Writes to a reader that has gone are
// dropped: nobody waits any more.
func TellTo(w io.Writer) Teller {
	var mu sync.Mutex
	encoder := json.NewEncoder(w)
	return func(step Step) {
		mu.Lock()
		defer mu.Unlock()
		_ = encoder.Encode(step)
	}
}

// TellNotifySocket returns a Teller that speaks systemd's notify protocol, or nil
// when no service manager listens.
func TellNotifySocket(socket string) Teller {
	if socket == "" {
		return nil
	}
	return func(step Step) {
		state := ""
		switch {
		case step.Done:
			state = "READY=1"
		case step.Doing != "":
			state = "STATUS=" + step.Doing
		case step.Error != "":
			state = "STATUS=" + step.Error
		default:
			return
		}
		_ = notify(socket, state)
	}
}

// Follow reads steps from r until the last one and shows them on out: a note at
// once, what is being done only when it takes longer than patience. It returns
// the error that the steps end with.
func Follow(r io.Reader, out io.Writer, patience time.Duration) error {
	steps := make(chan Step)
	go func() {
		defer close(steps)
		decoder := json.NewDecoder(r)
		for {
			var step Step
			if decoder.Decode(&step) != nil {
				return
			}
			steps <- step
			if step.Done || step.Error != "" {
				return
			}
		}
	}()
	timer := time.NewTimer(patience)
	timer.Stop()
	doing := ""
	for {
		select {
		case <-timer.C:
			fmt.Fprintf(out, "%s …\n", doing)
		case step, ok := <-steps:
			timer.Stop()
			switch {
			case !ok:
				return os.ErrClosed
			case step.Error != "":
				return fmt.Errorf("%s", step.Error)
			case step.Done:
				return nil
			case step.Note != "":
				fmt.Fprintln(out, step.Note)
			default:
				doing = step.Doing
				timer.Reset(patience)
			}
		}
	}
}
