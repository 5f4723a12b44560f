#!/bin/sh
# Writes every file that is generated. Run from the repository's root.
set -eu

# What the binaries link, and under which licences.
go run -trimpath ./hack/notices
