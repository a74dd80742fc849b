#!/usr/bin/env bash
# layers.sh: arrows between layers point one way. Prints every include that breaks the table in
# docs/design.md.
set -euo pipefail
cd "$(dirname "$0")/../thinwire"
declare -A may=(
  [core]="core" [wire]="core wire" [kernels]="core kernels" [memory]="core kernels memory"
  [compress]="core wire kernels memory compress" [comm]="core kernels comm"
  [exchange]="core wire kernels memory compress comm exchange"
  [delay]="core kernels compress comm exchange delay"
  [torch]="core wire kernels memory compress comm exchange delay torch"
)
bad=0
for layer in "${!may[@]}"; do
  while IFS=: read -r file _ include; do
    target=$(sed -E 's|.*"thinwire/([a-z]+)/.*|\1|' <<<"$include")
    [[ " ${may[$layer]} " == *" $target "* ]] || { echo "$file includes $target"; bad=1; }
  done < <(grep -rn '#include "thinwire/' "$layer")
done
grep -rnE '#include <(torch|ATen|c10|c10d)' . | grep -vE '^./(comm/c10d|torch)/' && bad=1
grep -rln '#include <mpi.h>' . | grep -v '^./comm/mpi/' && bad=1
exit $bad
