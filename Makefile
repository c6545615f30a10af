# All that people and CI do here. `make` lists it.

CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Build for release and show the store at work
	$(CARGO) run --release --package sapwood-cli --bin sapwood -- tour

test: ## Run all tests of all parts
	$(CARGO) test --workspace

lint: ## Check formatting and clippy's lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs: ## Build the documentation, refusing warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
