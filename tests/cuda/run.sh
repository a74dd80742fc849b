#!/usr/bin/env bash
# run.sh PROGRAM [TOOL...]: the tests on a GPU. Processes take turns on it, which costs more than it
# brings (eight do half of what one does), so only the largest tests, whose twins keep the CPU busy,
# run beside the others. With TOOLs of compute-sanitizer (memcheck, initcheck, synccheck, racecheck)
# tests of every kernel run under each of them in turn, with short buckets and few steps
# (THINWIRE_SMALL). LIMIT: seconds for a process; FILTER: as --gtest_filter, instead of ours. Prints
# what failed and the slowest tests, and fails if anything did.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
program=$1
shift
export THINWIRE_GPU=1 THINWIRE_THREADS=${THINWIRE_THREADS:-5}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
start=$SECONDS

process() {  # its name, the filter, and what to put before the program
  local name=$1 filter=$2 begin=$SECONDS
  shift 2
  timeout "${LIMIT:-600}" "$@" "$program" "--gtest_filter=${FILTER:-$filter}" \
    >"$scratch/$name.log" 2>&1
  echo "$name $? $((SECONDS - begin))" >>"$scratch/ends"
}

if [ $# -eq 0 ]; then
  large='*Large*:*ForMany*:*ManyTiles*' huge='*MoreThan*'
  process small "-$large:$huge" &
  if [ -z "${FILTER:-}" ]; then
    process large "$large" &
    process huge "$huge" &
  fi
  wait
else
  export THINWIRE_SMALL=1
  kernels='*Unaligned*Halves:*.GradientsOfHalves:*ValuesBeyondHalves:FrameSums*Equal*:Norm*Buckets*'
  kernels+=':SparseTwins.Unaligned*:DenseOn*:LimitOn*:BufferOn*:CastOnDevice.S*'
  for scheme in onebit efsign_group_0 int8 qsgd natural_memory_residual signum signum_travel_sum \
    terngrad terngrad_travel_sum threshold threshold_density_0_6_memory_none; do
    kernels+=":*VoidSteps/$scheme"
  done
  for tool in "$@"; do
    process "$tool" "$kernels" \
      compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 3
  done
fi

failed=0
while read -r name code seconds; do
  log=$scratch/$name.log
  echo "$name: code $code after $seconds s, $(grep -c '^\[       OK \]' "$log") tests passed," \
    "$(grep -c '^\[  SKIPPED \] .*ms)' "$log") were skipped"
  [ "$code" -eq 0 ] && continue
  failed=1
  grep -m 3 -A 7 -E 'Failure$|^=========.*([Ee]rror|[Hh]azard|[Bb]arrier)' "$log"
  grep -vE '^\[( RUN|       OK|-----)' "$log" | tail -n 8
done <"$scratch/ends"
echo "The slowest:"
sed -nE 's/^\[       OK \] (.*) \(([0-9]+) ms\)$/\2 ms \1/p' "$scratch"/*.log | sort -rn |
  head -n "${SLOWEST:-8}"
echo "$((SECONDS - start)) s in all"
exit $failed
