#!/bin/sh
# Lints the given packages (default: all), and what golangci-lint cannot know.
# Run from the repository's root. The linter is built from tools/ on first use.
set -eu

fail() {
	echo "lint: $1" >&2
	exit 1
}

# Exemptions are by path, in .golangci.yml.
if git grep -nE '//[[:space:]]*nolint' -- '*.go'; then
	fail "waivers are not allowed: change the code, or the rule for all code"
fi

# These names say nothing about what a package is for.
if git ls-files -- '*.go' | grep -E '(^|/)(util|utils|common|helper|helpers|misc)/'; then
	fail "name a package after what it provides"
fi

# Every room needs its rule, or it may import another unseen.
for room in internal/controller/*/; do
	[ -d "$room" ] || continue
	name=$(basename "$room")
	grep -q "^        room-$name:\$" .golangci.yml ||
		fail "internal/controller/$name has no rule room-$name in .golangci.yml"
done

# Each file is formatted.
unformatted=$(git ls-files -z -- '*.go' | xargs -0 gofmt -l)
[ -z "$unformatted" ] || fail "run gofmt -w on: $unformatted"

# As make builds, so that the linter finds what is compiled already.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
exec go tool -modfile=tools/go.mod golangci-lint run "${@:-./...}"
