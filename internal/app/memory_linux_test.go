package app

import (
	"slices"
	"testing"
)

const smaps = `00400000-02000000 r-xp 00000000 fe:00 131                        /usr/local/bin/mend
Size:              28672 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
02000000-03000000 r--p 01c00000 fe:00 131                        /usr/local/bin/mend
Private_Dirty:         4 kB
Anonymous:             4 kB
03000000-04000000 rw-p 02c00000 fe:00 131                        /usr/local/bin/mend
Anonymous:             0 kB
04000000-05000000 rw-p 00000000 00:00 0
Anonymous:             0 kB
05000000-06000000 r--p 00000000 fe:00 132                        /usr/lib/libc.so.6
Anonymous:             0 kB
06000000-07000000 r--p 03c00000 fe:00 131                        /usr/local/bin/mend
Anonymous:             0 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]
Anonymous:             0 kB
`

// A mend that was linked with cgo crashed once it had trimmed itself.
func TestOnlyPagesThatAreAsInTheFileAreGivenBack(t *testing.T) {
	got := unchanged(smaps, "/usr/local/bin/mend")
	if want := []mapping{{0x400000, 0x2000000}, {0x6000000, 0x7000000}}; !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}
