# Warmwire. `make help` lists the targets; `make check` is what CI runs.

# The toolchain the project is built with. An older Go fetches it by itself. A
# value of `local` comes from the machine's own default, not from a person.
ifeq ($(filter-out local auto,$(GOTOOLCHAIN)),)
GOTOOLCHAIN := go1.27.3
endif
export GOTOOLCHAIN

GO       ?= go
FUZZTIME ?= 10s
LENGTH   ?= short
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS  := -s -w -X main.version=$(VERSION)
VULNDB   := golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018

.DEFAULT_GOAL := help
.PHONY: help build demo test race fuzz arch lint vuln check e2e e2e-deps clients lab lab-full lab-heartbeats bench stress deploy-check release image clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

build: ## bin/warmwire, one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/warmwire ./cmd/warmwire

demo: build ## stream an answer of the built-in model API, then compare cold with warm
	bin/warmwire demo

test: ## all tests
	$(GO) test ./...

race: ## all tests with the race detector, in random order
	$(GO) test -race -shuffle=on ./...

fuzz: ## each fuzz target for FUZZTIME (default 10s)
	GO='$(GO)' FUZZTIME='$(FUZZTIME)' .ci/fuzz

arch: ## the import table and the house rules
	$(GO) test ./internal/arch

lint: ## gofmt, go vet, staticcheck, shell syntax
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l); \
	  if [ -n "$$unformatted" ]; then echo "run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	bash -n .ci/run .ci/fuzz .ci/image .ci/vuln

vuln: ## known vulnerabilities, from the database as a Go module (first run builds an index)
	GO='$(GO)' VULNDB='$(VULNDB)' .ci/vuln

check: lint arch race ## what CI runs: lint, arch, race, short fuzz
	$(MAKE) fuzz FUZZTIME=1s

e2e-deps: ## npm packages of the client matrix
	npm ci --ignore-scripts --no-audit --no-fund --prefix e2e/clients/node

e2e: ## real clients through every mode; the table goes to e2e/out/matrix.md
	$(GO) test -count=1 -v -run '^TestMatrix' ./e2e | grep -vE '^\s*(=== |--- PASS)' ; exit $${PIPESTATUS[0]}
e2e: SHELL := /bin/bash

clients: ## the same, and the table of docs/clients.md is written anew
	$(GO) test -count=1 -run '^TestMatrix$$' ./e2e -update

lab: build ## streams and heartbeats on a bad network, direct and through Warmwire; under seven minutes; root
	bin/warmwire lab study --length $(LENGTH) --check

lab-full: build ## the same for as long as the statistics need, an hour; the tables go to docs/lab.md
	@mkdir -p out
	bin/warmwire lab study --length full --only streams --json docs/lab.json >out/lab.md
	sed -i '/^<!-- begin tables -->$$/,/^<!-- end tables -->$$/{//!d}' docs/lab.md
	sed -i '/^<!-- begin tables -->$$/r out/lab.md' docs/lab.md
	$(MAKE) lab-heartbeats

lab-heartbeats: build ## its heartbeats alone, twenty minutes; the tables go to docs/lab.md
	@mkdir -p out
	bin/warmwire lab study --length full --only heartbeats --json docs/heartbeats.json >out/heartbeats.md
	sed -i '/^<!-- begin heartbeats -->$$/,/^<!-- end heartbeats -->$$/{//!d}' docs/lab.md
	sed -i '/^<!-- begin heartbeats -->$$/r out/heartbeats.md' docs/lab.md

bench: build ## beside the stock proxy, nginx, haproxy, caddy, squid, tinyproxy; ratios; about ten minutes
	$(GO) build -trimpath -o bin/bench ./bench
	bin/bench -warmwire bin/warmwire -out docs/benchmarks.md
	bin/bench -warmwire bin/warmwire -intercepted # docs/interception.md has it

stress: ## what CI does in small, whole: 20 upgrades and 300 reloads under 200 streams and 200 WebSockets, 100000 tunnels; about five minutes
	$(GO) test ./deploy -count=1 -v -run 'TestUpgradesLoseNothing|TestReloadsLoseNothing' -upgrades 20 -reloads 300 -reload-streams 200
	$(GO) test ./internal/ingress -count=1 -v -timeout 20m -run TestTunnelsLeaveNothingBehind -tunnels 100000

deploy-check: ## systemd unit, container file and manifests
	$(GO) test -count=1 ./deploy
	$(GO) test -count=1 ./deploy/release -release
	cd deploy/kubernetes/check && $(GO) test ./...

release: ## programs of five platforms, bills of materials, Debian packages, checksums: out/release
	$(GO) run ./deploy/release -version $(VERSION) -out out/release

image: ## container image, or its root as a tar where no engine runs
	VERSION='$(VERSION)' GO='$(GO)' .ci/image

clean: ## remove what the targets leave behind
	rm -rf bin out e2e/out e2e/clients/node/node_modules
