#!/usr/bin/env bash
# header-time.sh COMPILER INCLUDE: how long a file takes that only includes <gradual/gradual.h>, with nothing but
# -I INCLUDE. Fails when the best of five runs takes more than a second.
set -euo pipefail

compiler=$1 include=$2 limit_ms=1000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo '#include <gradual/gradual.h>' >"$work/only.cpp"

best=
for run in 1 2 3 4 5; do
  start=$(date +%s%N)
  "$compiler" -std=c++20 -I "$include" -c "$work/only.cpp" -o "$work/only.o"
  ms=$((($(date +%s%N) - start) / 1000000))
  printf 'run %d: %5d ms\n' "$run" "$ms"
  [[ -n $best ]] && ((best <= ms)) || best=$ms
done
lines=$("$compiler" -std=c++20 -I "$include" -E -P "$work/only.cpp" | wc -l)
printf 'best:  %5d ms for %d lines after preprocessing (limit %d ms)\n' "$best" "$lines" "$limit_ms"
((best <= limit_ms))
