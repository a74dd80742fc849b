#!/usr/bin/env bash
# run.sh: runs fuzz targets (all of them, or those named) for RUNS executions each, from a copy of
# the committed corpus.
# Usage: [RUNS=10000000] [EXCHANGE_RUNS=RUNS/100] [MAX_LEN=96] [BUILD=build/asan] fuzz/run.sh
# [TARGET...]
# fuzz_exchange runs whole trainings, which take milliseconds, and has a number of its own.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${RUNS:-10000000}
exchange_runs=${EXCHANGE_RUNS:-$((runs / 100))}
max_len=${MAX_LEN:-96}
programs=${BUILD:-build/asan}/fuzz
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for source in fuzz/fuzz_*.cc; do targets+=("$(basename "$source" .cc)"); done
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for target in "${targets[@]}"; do
  mkdir -p "$work/$target"
  seeds=()
  [ -d "fuzz/corpus/$target" ] && seeds=("fuzz/corpus/$target")
  more=(-runs="$runs")
  [ "$target" = fuzz_exchange ] && more=(-runs="$exchange_runs" -len_control=0 -timeout=120)
  if ! "$programs/$target" "${more[@]}" -max_len="$max_len" -seed=1 -print_final_stats=1 \
    -verbosity=0 \
      -artifact_prefix="$work/" "$work/$target" "${seeds[@]}" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    cp "$work"/*-* . 2>/dev/null || true
    echo "$target: FAILED; the input lies in $(pwd)" >&2
    exit 1
  fi
  done_runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
  speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$work/log")
  echo "$target: $done_runs executions, no finding ($speed per second)"
done
