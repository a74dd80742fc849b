#!/usr/bin/env bash
# mpi_digits.sh: runs the example under mpirun and checks what it prints.
#   mpi_digits.sh CASE PROGRAM WORKERS     CASE: runs, resumes, refuses
# DIGITS names the data file, if there is one.
set -euo pipefail
case=$1 program=$2 workers=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "mpi_digits.sh: $*" >&2
  exit 1
}

# The real digits where `make setup` has put them, else as many invented ones.
data=${DIGITS:-}
if [ ! -s "$data" ]; then
  data=$scratch/digits.csv
  awk 'BEGIN {
    for (i = 0; i < 1797; ++i) {
      for (p = 0; p < 64; ++p) printf "%d,", (i * 31 + p * (i % 10 + 1)) % 17
      print i % 10
    }
  }' >"$data"
fi

# More processes than cores, root in a container: Open MPI must be told that both are meant.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
mpi() { mpirun --oversubscribe -n "$workers" "$program" --data "$data" "$@"; }
rows() { grep -c ' identical ' "$1" || true; }
checksum() { awk '/ identical / { print $NF }' "$1"; }

case_runs() {
  mpi --steps 12 --scheme dense dgc:density=0.01,warmup=4 bf16 \
    --json "$scratch/rows.json" >"$scratch/out"
  cat "$scratch/out"
  [ "$(rows "$scratch/out")" = 3 ] || fail "expected three rows with identical replicas"
  [ "$(grep -c '"replicas_identical": true' "$scratch/rows.json")" = 3 ] ||
    fail "expected three rows in the JSON file"
  mpi --steps 4 --scheme dgc --link 1gbit,1ms >"$scratch/out"
  grep -q 'emulated' "$scratch/out" || fail "an emulated link is not labelled"
}

case_resumes() {
  local scheme
  for scheme in dense topk:density=0.01 dgc:density=0.01,warmup=12; do
    mpi --steps 20 --scheme "$scheme" >"$scratch/whole"
    mpi --steps 20 --scheme "$scheme" --stop 10 --save "$scratch/state" >"$scratch/first"
    mpi --steps 20 --scheme "$scheme" --resume "$scratch/state" >"$scratch/second"
    echo "$scheme: $(checksum "$scratch/whole") whole, $(checksum "$scratch/second") in two halves"
    [ -n "$(checksum "$scratch/whole")" ] || fail "no checksum was printed"
    [ "$(checksum "$scratch/whole")" != "$(checksum "$scratch/first")" ] ||
      fail "$scheme: ten steps changed nothing"
    [ "$(checksum "$scratch/whole")" = "$(checksum "$scratch/second")" ] ||
      fail "$scheme: the resumed run differs"
  done
}

# expect TEXT FLAGS...: the program must refuse, and say TEXT. As one process, whose start takes a
# tenth of mpirun's.
alone() { "$program" --data "$data" "$@"; }
expect() {
  local text=$1
  shift
  if ${start:-alone} "$@" >"$scratch/out" 2>&1; then fail "$*: was accepted"; fi
  grep -qF -- "$text" "$scratch/out" || fail "$*: expected '$text', got: $(cat "$scratch/out")"
  echo "refused: $text"
}

case_refuses() {
  start=mpi expect "--nonsense" --nonsense
  expect "--batch" --batch 0
  expect "--epochs" --steps 3 --epochs 2
  expect "unknown scheme 'zip'" --steps 2 --scheme zip
  expect "has no option 'colour'" --steps 2 --scheme dgc:colour=red
  expect "link 'thin'" --steps 2 --link thin
  expect "take one scheme" --steps 2 --scheme dense dgc --save "$scratch/state"
  expect "cannot open state file" --steps 2 --scheme dense --resume "$scratch/nowhere"
  alone --steps 4 --stop 2 --scheme dense --save "$scratch/state" >/dev/null
  expect "has --seed 1, but this one has 2" --steps 4 --scheme dense --seed 2 \
    --resume "$scratch/state"
  data="$scratch/nowhere.csv" expect "cannot open '$scratch/nowhere.csv'"
  head -c 100000 "$data" >"$scratch/short.csv"
  data="$scratch/short.csv" expect "truncated"
  head -n 100 "$data" >"$scratch/few.csv"
  start=mpi data="$scratch/few.csv" expect "has 100 images"
  sed '7s/^[0-9]*/seven/' "$data" >"$scratch/odd.csv"
  data="$scratch/odd.csv" expect "line 7: expected a number"
}

"case_$case"
