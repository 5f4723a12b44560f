#!/usr/bin/env bash
# make test: everything that belongs to a change. bin/mend must have been built.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
	if [ "${CI:-}" = true ]; then
		echo "make test: real containers need root, and under CI=true nothing may be left out" >&2
		exit 1
	fi
	echo "make test: not root, so the tests on real containers are left out" >&2
fi

# Unit, properties, simulator, in process against the real API server. Some start
# containers; those want the machine for themselves.
mapfile -t packages < <(go list ./... | grep -v -e '^mend/test/e2e$' -e '^mend/internal/sim$')
# Vetted by make vet, which reads the source of all dependencies for that; and without what
# only a debugger needs, test programs of this size are linked in half the time.
CGO_ENABLED=1 go test -race -vet=off -ldflags=-w -timeout 15m -p 2 "${packages[@]}"
# A simulated world has one goroutine, so there is nothing to race: 2,000 seeds.
CGO_ENABLED=0 go test -vet=off -ldflags=-w -timeout 10m ./internal/sim
# Goroutines are not raced here: the program under test is bin/mend, built without. Tests
# that may run beside others mostly wait, so more of them run than there are cores.
MEND_E2E="${MEND_E2E:-smoke}" CGO_ENABLED=0 go test -vet=off -ldflags=-w -count=1 -parallel 6 -timeout 20m ./test/e2e
