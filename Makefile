# thinwire: every command of the project. Each target does its own set-up; see `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
JOBS ?= $(shell nproc)
# Many tests wait for time limits and for each other, so run more of them at a time than
# there are cores.
TEST_JOBS ?= $(shell expr 2 '*' $(JOBS))
SOURCES = $(shell git ls-files '*.cc' '*.h' '*.cu' '*.cuh')

.PHONY: help packages browser environment setup build command test test-release test-asan \
  test-tsan test-python test-fuzz run-release run-asan run-tsan run-python run-fuzz run-lint \
  bench fuzz mutate demo command-demo docs format lint clean configure-cuda test-gpu bench-gpu
help:
	@echo "make build    build the library, the thinwire command and the tests (build/release)"
	@echo "make test     all tests: release, ASan + UBSan, TSan, the Python package, a short run of"
	@echo "              every fuzzer, the format of all sources; with CI=true clang-tidy on what the"
	@echo "              last commit changed"
	@echo "make demo     train on real data over 4 workers and an emulated thin link: a table and a"
	@echo "              page of dense, topk, dgc"
	@echo "make bench    every benchmark, each row with its floor"
	@echo "make test-gpu the CUDA kernels' tests, on a machine with a GPU; SANITIZE=1: also under all"
	@echo "              tools of compute-sanitizer; ARCHITECTURES=90: for these alone (a shorter"
	@echo "              build)"
	@echo "make bench-gpu  the CUDA kernels against their floors, on a machine with a GPU"
	@echo "make fuzz     every fuzzer, RUNS executions each (default 10 million)"
	@echo "make mutate   break one place of the library at a time and see whether a test notices"
	@echo "              (an hour)"
	@echo "make docs     build the site (build/site) and check every link of it and of README.md"
	@echo "make format   clang-format on all sources"
	@echo "make lint     clang-format as a check, and clang-tidy"
	@echo "make setup    what all of these do first: packages (as root), .venv, data"
	@echo "make clean    remove build/"

# System packages (as root), then a virtual environment and the digits data, which need only Python,
# so both can run at the same time. Each runs again when its script changes.
build/.python: scripts/setup
	@scripts/setup python
	@mkdir -p build && touch $@
build/.packages: build/.python
	@scripts/setup packages
	@touch $@
build/.browser: build/.packages
	@scripts/setup browser
	@touch $@
build/.environment: build/.python
	@scripts/setup environment
	@touch $@
packages: build/.packages
browser: build/.browser
environment: build/.environment
setup: packages environment

# `make build-asan` and so on for every preset; `make command` builds the thinwire command without
# the tests.
build: build-release
build-%: configure-%
	@cmake --build --preset $* -j $(JOBS)
command: configure-release
	@cmake --build --preset release -j $(JOBS) --target thinwire_command
.SECONDARY:
CONFIGURE = @[ -f build/$*/build.ninja ] || cmake --preset $* >build/configure-$*.log || \
  { cat build/configure-$*.log; exit 1; }
configure-asan configure-tsan: configure-%: packages
	$(CONFIGURE)
configure-%: setup
	$(CONFIGURE)

# Runs failed tests once more, alone, to show which ones fail only beside others. They still count
# as failed, and their first output ends the log.
FAILED_AGAIN = { log=build/$(or $*,release)/Testing/Temporary/LastTest.log; mv $$log $$log.first; \
  ctest --preset $(or $*,release) --rerun-failed || :; \
  echo "What the failed tests said at first:"; \
  awk '/ Testing: /{block = ""} {block = block $$0 "\n"} /^Test Failed/{printf "%s", block}' \
    $$log.first | tail -n 80; exit 1; }

# Runs several parts at a time: installing torch leaves a core idle, and so do the last files of a
# build and tests that wait for time limits and for each other. So the tests under sanitizers run
# beside the release build. The longest parts start first. The output of each part of the tests is
# printed as a whole when it ends.
test:
	@$(MAKE) --jobs 2 environment test-asan test-tsan build-release browser
	@$(MAKE) --jobs 2 --output-sync=recurse run-release run-python run-fuzz run-lint
test-release: browser
test-release test-python: test-%: build-release
	@$(MAKE) run-$*
test-asan test-tsan: test-%: build-%
	@$(MAKE) --output-sync=target run-$*
test-fuzz: build-asan
	@$(MAKE) run-fuzz
run-release:
	ctest --preset release -j $(TEST_JOBS) || $(FAILED_AGAIN)
run-asan run-tsan: run-%:
	ctest --preset $* -j $(JOBS) || $(FAILED_AGAIN)
run-python:
	TEST_JOBS=$(JOBS) tests/python/run.sh build/release
run-fuzz:
	RUNS=20000 EXCHANGE_RUNS=600 fuzz/run.sh

# On a machine with a GPU, with what is there: nothing is installed. tests/cuda/run.sh turns a test
# that would be skipped for want of a GPU into a failure.
configure-cuda:
	@mkdir -p build
	@cmake --preset cuda $(if $(ARCHITECTURES),-DCMAKE_CUDA_ARCHITECTURES="$(ARCHITECTURES)") \
	  >build/configure-cuda.log 2>&1 || { cat build/configure-cuda.log; exit 1; }
test-gpu: configure-cuda
	@cmake --build --preset cuda -j $(JOBS) --target cuda_tests
	tests/cuda/run.sh build/cuda/tests/cuda_tests
	$(if $(SANITIZE),tests/cuda/run.sh build/cuda/tests/cuda_tests \
	  memcheck initcheck synccheck racecheck)
bench-gpu: configure-cuda
	@cmake --build --preset cuda -j $(JOBS) --target cuda_bench sums_cuda_bench \
	  cuda_memory
	build/cuda/bench/cuda_bench
	build/cuda/bench/sums_cuda_bench
	build/cuda/bench/cuda_memory

bench: command
	build/release/apps/thinwire bench kernels --json build/bench_kernels.json
	build/release/apps/thinwire bench wire --json build/bench_wire.json
	build/release/apps/thinwire bench schemes --json build/bench_schemes.json
	build/release/apps/thinwire bench exchange --json build/bench_exchange.json

fuzz: build-asan
	fuzz/run.sh

# SEED selects the mutants, COUNT sets their number per folder. Survivors are listed at the end.
mutate: setup
	scripts/mutate --seed $(or $(SEED),1) --count $(or $(COUNT),40) --jobs $(JOBS)

# The demo installs and builds only what it needs, in build/demo. If the tree has a release build,
# the demo uses that command.
build/.demo-packages: build/.python
	@scripts/setup packages demo
	@touch $@
build/.demo-environment: build/.python
	@scripts/setup environment demo
	@touch $@
build/demo/build.ninja: build/.demo-packages build/.demo-environment
	@echo "demo: configuring build/demo"
	@cmake -S . -B build/demo -G Ninja -DCMAKE_UNITY_BUILD=ON -DTHINWIRE_TESTS=OFF \
	  -DTHINWIRE_EXAMPLES=OFF -DTHINWIRE_BENCH=OFF -DTHINWIRE_MPI=OFF -DTHINWIRE_PYTHON=OFF \
	  -DTHINWIRE_CUDA=OFF \
	  -DTorch_DIR="$$(echo $$PWD/.venv/lib/python3*/site-packages/torch/share/cmake/Torch)" \
	  >build/configure-demo.log 2>&1 || { cat build/configure-demo.log; exit 1; }
	@touch $@
command-demo: build/demo/build.ninja
	@echo "demo: building the thinwire command"
	@cmake --build build/demo -j $(JOBS) --target thinwire_command
DEMO = $(if $(wildcard build/release/build.ninja),release,demo)
demo:
	@$(MAKE) --jobs 2 $(if $(filter release,$(DEMO)),command,command-demo)
	build/$(DEMO)/apps/thinwire compare \
	  --schemes dense,topk:feedback=off,topk,dgc:density=0.001,warmup=60 \
	  --model mlp --data digits --workers 4 --steps 600 --lr 0.2 --schedule cosine --link 100mbit,1ms \
	  --report-every 15 --report build/demo.html --json build/demo.json

# Needs only MkDocs, not torch. Redraws the figures from their tables. MkDocs' --quiet would hide
# warnings from --strict as well.
docs: build/.python
	@[ -x .venv/bin/pip ] || /usr/bin/python3 -m venv .venv
	@.venv/bin/pip install -q --disable-pip-version-check -r docs/requirements.txt 2>&1 | \
	  { grep -v '^WARNING: Location' || :; }
	@.venv/bin/python scripts/docs_figures.py
	@.venv/bin/python scripts/docs_check.py
	@.venv/bin/mkdocs build --strict 2>&1 | { grep -v '^INFO' || :; }
	@echo "docs: build/site/index.html"

format: setup
	clang-format -i $(SOURCES)

lint: setup
	JOBS=$(JOBS) scripts/lint
# clang-tidy takes up to a minute per file, so CI checks only what the last commit changed.
run-lint:
	JOBS=$(JOBS) scripts/lint $(if $(CI),changed,format)

clean:
	rm -rf build
