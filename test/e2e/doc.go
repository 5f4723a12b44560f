// Package e2e runs bin/mend as a person would, on real containers, and kills
// things. MEND_E2E chooses how much: "smoke" (the default; part of make test),
// "short" (CI) or "full" (make e2e).
//
// Tests that are under load, kill many times or look at the whole machine run alone.
// The others run beside each other, each with a mend of its own.
//
// The tests need root. Without it they are skipped with one line that says so;
// under CI=true that is a failure.
package e2e
