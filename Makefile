# All that people and CI do here. `make` lists it.

CARGO ?= cargo
BUILD ?= --build

.DEFAULT_GOAL := help
.PHONY: help demo test test-root lint docs bench fuzz probe lab arena bench-transactions peers object-store test-cluster bench-cluster cluster-demo

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Build for release and show the store at work
	$(CARGO) run --release --package sapwood-cli --bin sapwood -- tour

test: ## Run all tests of all parts
	CARGO=$(CARGO) .ci/test

test-root: ## Run the tests that need root: real file systems that fail, run full and lose power
	CARGO=$(CARGO) .ci/test-root

lint: ## Check formatting and clippy's lints, also without the features that tests have
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --package sapwood --package sapwood-typed --lib --no-default-features -- -D warnings

docs: ## Build the documentation, refusing warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --features sapwood/async,sapwood-typed/async,sapwood-typed/jiff,sapwood-typed/uuid

bench: ## Measure what the README claims (DIR=directory on the disk to measure)
	$(CARGO) bench --package sapwood --bench first_light -- --dir $(or $(DIR),.)
	$(CARGO) bench --package sapwood --bench write_path -- --dir $(or $(DIR),.)

probe: ## Measure the disk alone, and draw it (DIR=directory)
	$(CARGO) run --release --package sapwood-cli --bin sapwood -- probe $(or $(DIR),.) --plot disk.svg

lab: ## Run the published experiments again, and make a page of them (DIR=directory on the disk, SCALE=ci|std|full; RESUME=1 goes on with a run that was broken off)
	code=0; $(CARGO) run --release --package lab -- run all --scale $(or $(SCALE),ci) --dir $(or $(DIR),.) $(if $(RESUME),--missing) || code=$$?; \
		$(CARGO) run --release --package lab -- report && exit $$code

arena: ## Race Sapwood against other stores, all under one memory limit (DIR=directory on the disk; hours)
	$(CARGO) run --release --package lab -- arena --build --dir $(or $(DIR),.)

bench-transactions: ## Race transactions against those of other stores (DIR=directory on the disk, BUILD= for the worker that is there; half an hour)
	$(CARGO) run --release --package lab -- arena $(BUILD) --dir $(or $(DIR),.) --workloads transactions --memory 256M --records 1000000 \
		--steady 3s --warm-up 2s --cap 60s --settle 1s --repeat 1

peers: ## Build, check and test the adapters to these other stores (minutes; no part of `make test`)
	cd crates/peers && $(CARGO) fmt --check && $(CARGO) clippy --all-targets -- -D warnings && $(CARGO) test

object-store: ## Build, check and test backups in object stores (two minutes; no part of `make test`)
	cd crates/object-store && $(CARGO) fmt --check && $(CARGO) clippy --all-targets -- -D warnings && $(CARGO) test

test-cluster: ## Build, check and test replication on openraft, clusters of processes included (minutes; `make test` has the short form)
	cd crates/openraft && $(CARGO) fmt --all --check && $(CARGO) clippy --workspace --all-targets -- -D warnings && $(CARGO) test --workspace && RUSTDOCFLAGS="-D warnings" $(CARGO) doc --package sapwood-openraft --no-deps

bench-cluster: ## Race three replicated nodes against etcd on this machine (needs Go; ETCD=program, DIR=directory on the disk; five minutes)
	cd crates/openraft && $(CARGO) build --release --package sapwood-node
	cd crates/openraft/examples/replicated-kv/tests/throughput && go run . -dir $(abspath $(or $(DIR),.)) $(BENCH_CLUSTER) \
		sapwood=$(or $(CARGO_TARGET_DIR),$(CURDIR)/crates/openraft/target)/release/sapwood-node \
		$(addprefix etcd=,$(or $(ETCD),$(shell command -v etcd)))

cluster-demo: ## Start three replicated nodes here, write, kill the leader, read (PORT=first of three; needs curl)
	CARGO=$(CARGO) PORT=$(or $(PORT),7301) crates/openraft/examples/replicated-kv/demo

fuzz: ## Fuzz every decoder, SECONDS each (needs the nightly toolchain and cargo-fuzz)
	for target in node manifest current wal backup keys followers stored repair opened mdb tsv csv jsonl trace_plain trace_msr typed_key typed_schema replicated; do \
		mkdir -p fuzz/found/$$target && cp fuzz/corpus/$$target/* fuzz/found/$$target && \
		$(CARGO) +nightly fuzz run $$target fuzz/found/$$target -- -timeout=30 -max_total_time=$(or $(SECONDS),60) -rss_limit_mb=2048 || exit 1; done
