#!/usr/bin/env bash
# make sim: the loops in the seeded world. SEED=n replays one seed; SEEDS=n runs
# that many, from FROM on; without either, 20,000 and then every mutation.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${SEED:-}" ]; then
	SIM_SEED=$SEED exec go test -count=1 -timeout 10m -run '^TestSeeds$' -v ./internal/sim
fi
SIM_SEEDS=${SEEDS:-20000} SIM_FROM=${FROM:-1} SIM_SECONDS=3600 \
	go test -count=1 -timeout 2h -run '^TestSeeds$' -v ./internal/sim
go test -count=1 -timeout 2h -run '^TestMutations$' -v ./internal/sim
