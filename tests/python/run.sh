#!/usr/bin/env bash
# run.sh: pytest over the package of a build: tests/python/run.sh build/release [pytest's options].
# Not under ctest, so that pytest's own closing line is seen. Most tests wait more than they
# compute: several run at a time.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$PWD/$1
shift
if ! compgen -G "$build/python/thinwire/_native*.so" >/dev/null; then
  echo "run.sh: $build has no Python package (no torch, or no Python headers): nothing to test"
  exit 0
fi
export PYTHONPATH=$build/python:$build/tests/python:$PWD/tests/python PYTHONDONTWRITEBYTECODE=1
export THINWIRE=$build/apps/thinwire LIBTORCH_DIGITS=$build/examples/libtorch_digits/libtorch_digits
exec ${PYTHON:-.venv/bin/python} -W ignore -m pytest -q -p no:cacheprovider \
  ${TEST_JOBS:+-n $TEST_JOBS --dist worksteal} "$@" tests/python
