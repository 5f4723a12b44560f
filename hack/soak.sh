#!/usr/bin/env bash
# make soak: random kills, rollouts and load on real containers for FOR (30m by
# default); reports the growth of memory and every violation. bin/mend must have been
# built.
set -euo pipefail
cd "$(dirname "$0")/.."
MEND_SOAK="${FOR:-30m}" CGO_ENABLED=0 go test -count=1 -v -timeout 24h -run '^TestSoak$' ./test/e2e
