package app

import (
	"os"
	"testing"

	"mend/internal/testkit"
)

// TestMain says once for all tests where the libraries' log goes.
func TestMain(m *testing.M) {
	testkit.QuietLibraries()
	librariesLogged.Do(func() {})
	os.Exit(m.Run())
}
