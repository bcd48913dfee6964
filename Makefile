# SLOCK: what a developer types. The recipes are short; what they do is in scripts/.

PORT ?= 6379
SERVER ?= redis-server
GET_SERVERS ?= ../shared/tools/get-servers
SLOCK_SOAK_SECONDS ?= 60
FUZZ ?= 1000000
SLOCK_EXPLORE_SECONDS ?= 600
export PORT SERVER GET_SERVERS SLOCK_SOAK_SECONDS SLOCK_EXPLORE_SECONDS

.DEFAULT_GOAL := help
.PHONY: help deps module build run demo test test-clients test-go test-others test-servers dist site site-check clients-examples histories soak torture torture-faults fuzz miri memcheck explore explore-faults faults bench bench-quick lint format clean

help: ## Show this
	@echo "SLOCK, a read-write lock as a Redis data type."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PORT=6379             the port of make run"
	@echo "  SERVER=path           the server that run, demo, test, soak and bench start (Redis 7.0+, Valkey 7.2+)"
	@echo "  SUITE=\"pytest args\"   a part of the server tests, e.g. SUITE=\"tests/test_locking.py -k fence\""
	@echo "  SERVERS=\"path path\"   the servers of make test-servers and make bench; without it, NAMES=\"name name\" to fetch"
	@echo "  FAULTS=\"queue\"        a part of make faults, by subject or name (tests/README.md)"
	@echo "  BENCH=\"compare\"       a part of make bench: instructions, compare, persistence, memory, places, handoff, longest,"
	@echo "                        waking, crowds, queues, clients, growth, scale"

deps: ## Install what is missing (Debian packages as root; Python packages into .venv)
	@scripts/deps

module: deps ## Build the module, target/release/libslock.so
	cargo build --release --package slock-module

build: module ## Build the module, and the program target/release/slock
	cargo build --release --package slock-cli

run: module ## Start a server with the module, in the foreground, on 127.0.0.1:PORT
	@scripts/run

demo: module ## Play a short story on a private server: locks, a crash, a replica
	@.venv/bin/python scripts/demo.py

test: deps ## Run the tests: the Rust crates, the module in a server, the libraries for Python, Rust and Go
	@scripts/test

test-clients: module ## Run the tests of the client libraries only: Python, Rust, and Go where it is installed
	@scripts/test-clients

test-go: module ## Run the tests of the Go library only
	@scripts/test-clients go

test-others: module ## Run the tests of the libraries for Node and Java, where these are installed
	@scripts/test-clients others

test-servers: module ## Run the server tests on each of SERVERS, or on those that GET_SERVERS fetches
	@scripts/test-servers

dist: build ## Pack all for machines without Rust, into target/dist: a Debian package, a tarball, a wheel of the Python library
	@scripts/dist

site: ## Make a site of the pages, with search, in target/site/html
	@scripts/site

site-check: ## Open the site in headless Chromium: search for the commonest tasks, follow every link, take pictures
	@scripts/site check

clients-examples: ## Fetch and build the examples in other languages, which make test then runs
	@scripts/clients-examples

histories: module ## Play 2,000 late histories, all races and all faults through each client library
	SLOCK_THOROUGH=1 .venv/bin/python -m pytest \
	  clients/conformance/test_late_histories.py clients/conformance/test_races.py clients/conformance/test_disturbed.py \
	  clients/conformance/test_cluster.py clients/conformance/test_planned_failovers.py clients/conformance/test_failovers.py

soak: module ## Run the long tests for SLOCK_SOAK_SECONDS (60)
	@scripts/test soak

torture: export SLOCK_TORTURE_SECONDS ?= 1200
torture: export SLOCK_TORTURE_KILLS ?= 200
torture: export SLOCK_TORTURE_FAILOVERS ?= 50
torture: export SLOCK_TORTURE_RESHARDS ?= 20
torture: module ## Break servers under load for SLOCK_TORTURE_SECONDS (1200); 200 kills, 100 failovers, 20 reshards
	.venv/bin/python -m pytest -s -o faulthandler_timeout=0 tests/test_judged_histories.py tests/test_torture.py \
	  tests/test_failovers.py tests/test_queue_reshard.py tests/test_power_cut.py

torture-faults: deps ## Plant the faults that make torture must find, in a copy, and tell what clients were told
	@scripts/faults --torture

fuzz: module ## Look for inputs that break a promise: FUZZ (1,000,000) of each kind, on each of SERVERS
	@FUZZ=$(FUZZ) scripts/fuzz

miri: ## Run the core's tests under Miri (8 min; a nightly compiler): no undefined behaviour, nothing lost
	@scripts/miri

memcheck: module ## Run server tests under valgrind (7 min): no invalid access, nothing lost
	@scripts/memcheck

explore: ## Visit every state of small worlds for SLOCK_EXPLORE_SECONDS (600); fail when one breaks a promise
	cargo test --profile explore --package slock-core --lib explore -- --ignored --nocapture --test-threads=1

explore-faults: deps ## Plant the faults that make explore finds, in a copy, and tell a shortest history of each
	@scripts/faults --explore

faults: deps ## Plant each fault of tests/faults in a copy (an hour); fail when no test notices it
	@scripts/faults

bench: module ## Measure on each of SERVERS and write docs/benchmarks.md and its tables; fail when a limit is passed
	@scripts/bench

bench-quick: module ## Count instructions (2 min); fail when a case takes more than bench/instructions.json says
	@scripts/bench quick

lint: deps ## Check format and style of Rust, Python and shell, and the types of the Node library
	@scripts/lint

format: deps ## Format Rust and Python
	cargo fmt
	.venv/bin/ruff check --select I --fix .
	.venv/bin/ruff format .

clean: ## Remove what was built, .venv, and the data that make run left
	cargo clean
	rm -rf .venv .pytest_cache .ruff_cache slock*.rdb slock-aof* temp-*.rdb
