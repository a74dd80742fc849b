#!/usr/bin/env bash
# demo.sh: what `make demo` runs: four MPI processes train the digits over an emulated thin link, once per scheme.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$root/build/release/examples/mpi_digits/mpi_digits
data=$root/data/digits.csv
[ -x "$program" ] && [ -s "$data" ] || {
  echo "demo: the program or its data is missing (it needs MPI, CLI11 and nlohmann-json);" >&2
  echo "demo: run   make -C $root demo" >&2
  exit 1
}
# Open MPI asks root to say twice that it means it; four processes may have to share fewer cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none

echo "Four MPI processes train on the handwritten digits. The link of 100 Mbit/s and 1 ms between them is emulated."
mpirun --oversubscribe -n 4 "$program" --data "$data" --link 100mbit,1ms --scheme \
  dense topk:density=0.001,feedback=off topk:density=0.001 dgc:density=0.001,warmup=20 "$@"
