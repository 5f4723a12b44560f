#!/usr/bin/env bash
# make e2e: the kill tests and others at full length (MEND_E2E=full), or shortened for CI
# (MEND_E2E=short). bin/mend must have been built.
set -euo pipefail
cd "$(dirname "$0")/.."
MEND_E2E="${MEND_E2E:-full}" CGO_ENABLED=0 go test -count=1 -parallel 6 -timeout 80m ./test/e2e "$@"
