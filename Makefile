# make help lists the targets. Each works on a fresh Debian machine with root,
# Go and gcc; what else is needed is installed by the target that needs it.

VERSION   := 0.1.0
KUBE      := 1.37.2
COMMIT    := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# The commit's date, so that the same commit builds the same bytes.
BUILDDATE := $(shell git log -1 --format=%cI 2>/dev/null || echo 1970-01-01T00:00:00Z)
TREE      := $(shell test -z "$$(git status --porcelain 2>/dev/null)" && echo clean || echo dirty)
KV        := k8s.io/component-base/version

LDFLAGS := -s -w -X mend/internal/version.Version=$(VERSION) \
	-X $(KV).gitVersion=v$(KUBE)+mend.$(VERSION) -X $(KV).gitMajor=1 -X $(KV).gitMinor=37 \
	-X $(KV).gitCommit=$(COMMIT) -X $(KV).gitTreeState=$(TREE) -X $(KV).buildDate=$(BUILDDATE)

export GOFLAGS := -trimpath -buildvcs=false
GO    := go
BUILD := CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)'

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | sed 's/:.*## /\t/' | expand -t 16

# Containers run on Linux only.
PAYLOAD := $(if $(filter linux,$(shell $(GO) env GOHOSTOS)),payload)

.PHONY: build
build: $(PAYLOAD) ## bin/mend, with the container runtime inside, and bin/kubectl
	$(BUILD) -o bin/mend ./cmd/mend
	ln -sf mend bin/kubectl

.PHONY: payload
payload: ## the container runtime, CNI plugin and built-in images, to be embedded
	$(MAKE) -C runtime payload

.PHONY: cross
cross: $(PAYLOAD) ## dist/mend-VERSION-OS-ARCH for Linux and macOS, amd64 and arm64
	VERSION='$(VERSION)' LDFLAGS='$(LDFLAGS)' CHECK='$(CHECK)' hack/cross.sh

.PHONY: demo
demo: build ## build mend and walk through both documents on real containers
	CGO_ENABLED=0 $(GO) build -o bin/walkthrough ./test/walkthrough
	bin/walkthrough --mend bin/mend

.PHONY: demo-simulated
demo-simulated: build ## the same walk on the simulated runtime, without root
	CGO_ENABLED=0 $(GO) build -o bin/walkthrough ./test/walkthrough
	bin/walkthrough --mend bin/mend --simulate

.PHONY: test
test: build ## unit, properties, in-process with -race, end-to-end smoke
	hack/test.sh

.PHONY: e2e
e2e: build ## the kill tests and others at full length, on real containers
	MEND_E2E=full hack/e2e.sh

.PHONY: soak
soak: build ## random kills, rollouts and load: FOR=30m
	FOR=$(FOR) hack/soak.sh

.PHONY: sim
sim: ## the loops in the seeded simulator: SEED=n replays one, SEEDS=n runs many
	SEED=$(SEED) SEEDS=$(SEEDS) FROM=$(FROM) hack/sim.sh

.PHONY: bench
bench: build ## figures: start, memory, heal, restart
	hack/bench.sh

.PHONY: bench-upstream
bench-upstream: build ## Kubernetes' own parts and KWOK, timed with the same steps: REPLICAS=1000
	REPLICAS=$(REPLICAS) hack/upstream.sh

.PHONY: vet
vet: ## go vet, and whether the third-party notices are up to date; CI runs it
	CGO_ENABLED=0 $(GO) vet ./...
	$(GO) run ./hack/notices -check

.PHONY: lint
lint: ## golangci-lint with .golangci.yml
	hack/lint.sh

.PHONY: generate
generate: ## write what is generated
	hack/generate.sh

.PHONY: verify
verify: generate ## generated files are up to date
	git diff --exit-code

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
