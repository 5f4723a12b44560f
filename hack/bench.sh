#!/usr/bin/env bash
# make bench: the README's figures, on real containers, and the same steps on
# simulated nodes. bin/mend must have been built. Quote medians and ratios: the
# machine is never alone.
set -euo pipefail
cd "$(dirname "$0")/.."
CGO_ENABLED=0 go build -o bin/bench ./test/bench
if [ "$(id -u)" = 0 ]; then
	bin/bench --mend bin/mend
else
	echo "not root: the figures on real containers are left out" >&2
fi
dir=$(mktemp -d)
trap 'bin/mend down --purge --data-dir "$dir/data" >/dev/null; rm -rf "$dir"' EXIT
for replicas in 1000 5000; do
	bin/mend up --simulate 10 --data-dir "$dir/data" --api-port 0 --kubeconfig "$dir/kubeconfig" >/dev/null
	bin/mend bench --data-dir "$dir/data" --kubeconfig "$dir/kubeconfig" --replicas "$replicas" --requests 2000 2>/dev/null
	bin/mend down --purge --data-dir "$dir/data" >/dev/null
done
