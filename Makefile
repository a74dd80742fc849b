# thinwire: every command of the project. Each target does its own set-up; see `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
JOBS ?= $(shell nproc)
# Many tests wait for time limits and for each other: more of them at a time than there are cores.
TEST_JOBS ?= $(shell expr 2 '*' $(JOBS))
SOURCES = $(shell git ls-files '*.cc' '*.h')

.PHONY: help packages environment setup build command test test-release test-asan test-tsan test-python test-fuzz bench fuzz mutate demo docs format lint clean
help:
	@echo "make build    build the library, the thinwire command and the tests (build/release)"
	@echo "make test     all tests: release, ASan + UBSan, TSan, the Python package, a short run of every fuzzer"
	@echo "make demo     train on real data over 4 workers and an emulated thin link: a table and a page of dense, topk, dgc"
	@echo "make bench    every benchmark, each row with its floor"
	@echo "make fuzz     every fuzzer, RUNS executions each (default 10 million)"
	@echo "make mutate   break one place of the library at a time and see whether a test notices (an hour)"
	@echo "make docs     build the site (build/site) and check every link of it and of README.md"
	@echo "make format   clang-format on all sources"
	@echo "make lint     clang-format as a check, and clang-tidy"
	@echo "make setup    what all of these do first: packages (as root), .venv, data"
	@echo "make clean    remove build/"

# System packages (when root); a virtual environment and the digits data, which need Python alone, so that both may go on
# at a time. Each runs again when its script changes.
build/.python: scripts/setup
	@scripts/setup python
	@mkdir -p build && touch $@
build/.packages: build/.python
	@scripts/setup packages
	@touch $@
build/.environment: build/.python
	@scripts/setup environment
	@touch $@
packages: build/.packages
environment: build/.environment
setup: packages environment

# `make build-asan` and so on for every preset; `make command` builds the thinwire command without the tests.
build: build-release
build-%: configure-%
	@cmake --build --preset $* -j $(JOBS)
command: configure-release
	@cmake --build --preset release -j $(JOBS) --target thinwire_command
.SECONDARY:
CONFIGURE = @[ -f build/$*/build.ninja ] || cmake --preset $* >build/configure-$*.log || { cat build/configure-$*.log; exit 1; }
configure-asan configure-tsan: configure-%: packages
	$(CONFIGURE)
configure-%: setup
	$(CONFIGURE)

# What failed runs once more, alone: a test that fails only beside others shows itself. It has failed all the same, and
# what it said the first time ends the log.
FAILED_AGAIN = { log=build/$(or $*,release)/Testing/Temporary/LastTest.log; mv $$log $$log.first; \
  ctest --preset $(or $*,release) --rerun-failed || :; echo "What the failed tests said at first:"; \
  awk '/ Testing: /{block = ""} {block = block $$0 "\n"} /^Test Failed/{printf "%s", block}' \
    $$log.first | tail -n 80; exit 1; }

# Several parts at a time: to install torch leaves a core idle, and so do tests that wait for time limits and for each
# other. Each part's output comes as a whole, when it has ended.
test:
	@$(MAKE) --jobs 2 --output-sync=recurse environment build-asan build-tsan
	@$(MAKE) build-release
	@$(MAKE) --jobs 2 --output-sync=recurse test-python test-release test-asan test-tsan test-fuzz
test-release: build-release
	ctest --preset release -j $(TEST_JOBS) || $(FAILED_AGAIN)
test-asan test-tsan: test-%: build-%
	ctest --preset $* -j $(JOBS) || $(FAILED_AGAIN)
test-python: build-release
	TEST_JOBS=$(JOBS) tests/python/run.sh build/release
test-fuzz: build-asan
	RUNS=20000 EXCHANGE_RUNS=600 fuzz/run.sh

bench: command
	build/release/apps/thinwire bench kernels --json build/bench_kernels.json
	build/release/apps/thinwire bench wire --json build/bench_wire.json
	build/release/apps/thinwire bench schemes --json build/bench_schemes.json
	build/release/apps/thinwire bench exchange --json build/bench_exchange.json

fuzz: build-asan
	fuzz/run.sh

# SEED chooses the mutants, COUNT how many per folder. Survivors are listed at the end.
mutate: setup
	scripts/mutate --seed $(or $(SEED),1) --count $(or $(COUNT),40) --jobs $(JOBS)

demo: command
	build/release/apps/thinwire compare --schemes dense,topk:feedback=off,topk,dgc:density=0.001,warmup=60 \
	  --model mlp --data digits --workers 4 --steps 600 --lr 0.2 --schedule cosine --link 100mbit,1ms \
	  --report-every 15 --report build/demo.html --json build/demo.json

# MkDocs alone is needed, not torch. The figures are drawn anew from their tables.
docs: build/.python
	@[ -x .venv/bin/pip ] || /usr/bin/python3 -m venv .venv
	@.venv/bin/pip install -q --disable-pip-version-check -r docs/requirements.txt 2>&1 | \
	  { grep -v '^WARNING: Location' || :; }
	@.venv/bin/python scripts/docs_figures.py
	@.venv/bin/python scripts/docs_check.py
	@.venv/bin/mkdocs build --quiet --strict
	@echo "docs: build/site/index.html"

format: setup
	clang-format -i $(SOURCES)

# Nothing is built: clang-tidy only asks how each file would be. What needs CUDA's headers is left out.
lint: setup
	@clang-format --dry-run --Werror $(SOURCES)
	@cmake --preset lint >build/configure-lint.log || { cat build/configure-lint.log; exit 1; }
	@printf '%s\n' $(filter-out fuzz/% bench/% %/nccl.cc,$(filter %.cc,$(SOURCES))) | \
	  xargs -P $(JOBS) -n 1 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option -p build/lint 2>/dev/null && echo "lint: nothing found"

clean:
	rm -rf build
