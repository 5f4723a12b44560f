package app

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestFollowShowsOnlyWhatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		go func() {
			tell := TellTo(writer)
			tell.Doing("quick")
			tell.Doing("slow")
			<-time.After(3 * time.Second)
			tell.Note("a note")
			tell.Finish(nil)
		}()
		var out bytes.Buffer
		if err := Follow(reader, &out, time.Second); err != nil {
			t.Fatal(err)
		}
		if want := "slow …\na note\n"; out.String() != want {
			t.Errorf("shown = %q, want %q", out.String(), want)
		}
	})
}

func TestFollowEndsWithTheStepsError(t *testing.T) {
	var steps bytes.Buffer
	TellTo(&steps).Finish(errors.New("port taken"))
	if err := Follow(&steps, io.Discard, time.Second); err == nil || err.Error() != "port taken" {
		t.Errorf("error = %v", err)
	}
}

func TestFollowNoticesADeadTeller(t *testing.T) {
	var steps bytes.Buffer
	TellTo(&steps).Doing("something")
	if err := Follow(&steps, io.Discard, time.Second); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error = %v, want os.ErrClosed", err)
	}
}
