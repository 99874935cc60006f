# `make help` lists the targets. Nothing is downloaded but Go modules and, by
# `make deps`, redis-server from the system's packages.

GO       ?= go
FUZZTIME ?= 10s
TESTFLAGS ?=

TOOL = $(GO) tool -modfile=internal/tools/go.mod

.PHONY: site site-check help deps test mutants lint fmt bench bench-peers collapse-peers fuzz chaos dashboard screenshots

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile

deps: ## fetch modules; install redis-server (and a C compiler) if missing
	@.ci/deps
	$(GO) mod download

test: deps ## run all tests under the race detector, against real servers; the quick mutants first
	$(GO) test -run SameSeed $(TESTFLAGS) ./internal/harness/sim
	$(GO) run ./internal/cmd/mutants -quick
	CGO_ENABLED=1 $(GO) test -race -shuffle=on -timeout 15m $(TESTFLAGS) ./...
	cd lock/backends && $(GO) test $(TESTFLAGS) ./...

# A run of everything takes several minutes of two cores.
mutants: deps ## break the library on purpose, one rule at a time: each mutant must be found
	$(GO) run ./internal/cmd/mutants -baseline

lint: ## golangci-lint (.golangci.yml), then govulncheck where its database is in reach
	$(TOOL) golangci-lint run ./...
	cd bench && $(GO) tool -modfile=../internal/tools/go.mod golangci-lint run --config ../.golangci.yml ./...
	@.ci/vulncheck

fmt: ## format all Go files
	$(TOOL) golangci-lint fmt ./...

bench: deps ## run the benchmarks of the root package
	$(GO) test -run '^$$' -bench . -benchmem .

# A run of everything, about 25 minutes; bench/README.md has shorter ones.
PEERS ?=

bench-peers: deps ## measure this library beside its peers; writes bench/peers.md and bench/peers.svg
	cd bench && $(GO) run . -as 'make bench-peers' -json results.json -md peers.md -svg peers.svg $(PEERS)

# A run of everything takes about 6 minutes. COLLAPSE='-caches nginx -args "-run swr"' is shorter.
COLLAPSE ?=

collapse-peers: deps ## test how this project's proxy and five other caches collapse requests; writes bench/collapse.md
	@.ci/collapse-peers
	PATH=$$PATH:/usr/sbin $(GO) run ./internal/cmd/collapsepeers -md bench/collapse.md $(COLLAPSE)

fuzz: deps ## run each fuzz target for FUZZTIME (10s)
	@FUZZTIME=$(FUZZTIME) .ci/fuzz

site: ## build the documentation site from docs/ into site/dist; needs node
	cd site && npm install --no-save --no-audit --no-fund && npx vitepress build

site-check: site ## open each page of the site in a real browser
	cd site && node check.mjs

CHAOSFOR ?= 5m

chaos: deps ## run real processes against real servers under faults, CHAOSFOR (5m) each
	$(GO) run ./internal/cmd/chaos -redis standalone -for $(CHAOSFOR)
	$(GO) run ./internal/cmd/chaos -redis sentinel -for $(CHAOSFOR)
	$(GO) run ./internal/cmd/chaos -redis cluster -for $(CHAOSFOR)

dashboard: ## write dashboards/stampede.json
	$(GO) run ./internal/cmd/dashboard >dashboards/stampede.json

screenshots: deps ## take the debug page's screenshots for docs/guide, in a real browser
	cd examples/observability && OBSERVABILITY_SCREENSHOTS=$(CURDIR)/docs/guide/images $(GO) test -count=1 -run TestDebugPageInABrowser .
