package procstat

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"
)

func TestThisProcess(t *testing.T) {
	held := make([]byte, 64<<20)
	for i := 0; i < len(held); i += os.Getpagesize() {
		held[i] = 1
	}
	if got, err := Resident(os.Getpid()); err != nil || got < int64(len(held)) || got > 16*int64(len(held)) {
		t.Errorf("resident: %d bytes, %v; at least %d are held", got, err, len(held))
	}
	held[0] = 2
	began := time.Now()
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for used := time.Duration(0); used < 50*time.Millisecond; {
		after, err := CPU(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if used = after - before; time.Since(began) > time.Minute {
			t.Fatalf("after a minute of work %v of processor time", used)
		}
	}
}

func TestNoSuchProcess(t *testing.T) {
	const none = 1 << 30 // beyond the largest pid
	if _, err := Resident(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("resident: %v", err)
	}
	if _, err := CPU(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cpu: %v", err)
	}
}
