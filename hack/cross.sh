#!/usr/bin/env bash
# make cross: mend for Linux and macOS on amd64 and arm64, into dist/. The same commit
# gives the same bytes. Targets in CHECK are only type-checked.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${VERSION:?make cross sets it}" "${LDFLAGS:?make cross sets it}"
export CGO_ENABLED=0
targets=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64)
payloads=internal/runtime/containerd/payload

# A compiler for the other architecture builds the runtime programs for it, if it has
# libseccomp's archive. This machine's own were built by make payload.
for arch in amd64 arm64; do
	case $arch in
	amd64) cc=x86_64-linux-gnu-gcc ;;
	arm64) cc=aarch64-linux-gnu-gcc ;;
	esac
	[ "$arch" != "$(go env GOHOSTARCH)" ] && command -v "$cc" >/dev/null &&
		[ "$("$cc" -print-file-name=libseccomp.a)" != libseccomp.a ] || continue
	make -C runtime payload GOARCH="$arch" CC="$cc"
done

for target in "${targets[@]}"; do
	os=${target%/*} arch=${target#*/}
	mapfile -t ours < <(GOOS=$os GOARCH=$arch go list -deps ./cmd/mend | grep '^mend/')
	go run ./hack/typecheck -os "$os" -arch "$arch" "${ours[@]}"
	case " ${CHECK:-} " in *" $target "*) continue ;; esac
	out=dist/mend-$VERSION-$os-$arch
	GOOS=$os GOARCH=$arch go build -ldflags "$LDFLAGS" -o "$out" ./cmd/mend
	if [ "$os" = linux ] && [ -e "$payloads/$arch/manifest.json" ]; then
		echo "$out: containers and simulated nodes"
	else
		echo "$out: simulated nodes only"
	fi
done

# What differs by system is vetted once for another one; make test vets it for Linux.
export GOOS=darwin GOARCH=arm64
mapfile -t differing < <(go list -f '{{if .IgnoredGoFiles}}{{.ImportPath}}{{end}}' "${ours[@]}")
go vet "${differing[@]}"
