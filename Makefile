# thinwire: every command of the project. Each target does its own set-up; see `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
JOBS ?= $(shell nproc)
SOURCES = $(shell git ls-files '*.cc' '*.h')

.PHONY: help setup build test bench fuzz demo format lint clean
help:
	@echo "make build    build the library, the thinwire command and the tests (build/release)"
	@echo "make test     all tests: release, ASan + UBSan, TSan, a short run of every fuzzer"
	@echo "make demo     train a network over 4 MPI processes, dense against dgc"
	@echo "make bench    every benchmark, each row with its floor"
	@echo "make fuzz     every fuzzer, RUNS executions each (default 10 million)"
	@echo "make format   clang-format; make lint: its check, and clang-tidy"

# System packages (when root), the virtual environment, the digits data. Runs again when its script changes.
setup: build/.setup
build/.setup: scripts/setup
	@scripts/setup
	@mkdir -p build && touch $@

# `make build-asan` and so on for every preset.
build: build-release
build-%: setup
	@[ -f build/$*/build.ninja ] || cmake --preset $* >build/configure-$*.log || { cat build/configure-$*.log; exit 1; }
	@cmake --build --preset $* -j $(JOBS)

test: build-release build-asan build-tsan build-fuzz
	ctest --preset release -j $(JOBS)
	ctest --preset asan -j $(JOBS)
	ctest --preset tsan -j $(JOBS)
	RUNS=20000 fuzz/run.sh

bench: build
	build/release/apps/thinwire bench kernels --json build/bench_kernels.json
	build/release/apps/thinwire bench wire --json build/bench_wire.json
	build/release/apps/thinwire bench schemes --json build/bench_schemes.json
	build/release/apps/thinwire bench exchange --json build/bench_exchange.json

fuzz: build-fuzz
	fuzz/run.sh

demo: build
	examples/mpi_digits/demo.sh

format: setup
	clang-format -i $(SOURCES)

lint: build
	@clang-format --dry-run --Werror $(SOURCES)
	@printf '%s\n' $(filter-out fuzz/% bench/% %_no%.cc,$(filter %.cc,$(SOURCES))) | \
	  xargs -P $(JOBS) -n 1 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option -p build/release 2>/dev/null && echo "lint: nothing found"

clean:
	rm -rf build
