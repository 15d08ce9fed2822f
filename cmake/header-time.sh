#!/usr/bin/env bash
# header-time.sh COMPILER INCLUDE: how long a file takes that only includes <gradual/gradual.h>, with nothing but
# -I INCLUDE, beside a file of the standard headers that it uses. The aim is a second on a current desktop core; since
# machines differ threefold, what it fails by is the number of lines that the compiler reads.
set -euo pipefail

compiler=$1 include=$2 aim_ms=1000 limit_lines=75000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo '#include <gradual/gradual.h>' >"$work/whole.cpp"
"$compiler" -std=c++20 -I "$include" -MM "$work/whole.cpp" | tr -s ' \\' '\n' | grep -F "$include" |
  xargs grep -hoE '^#include <[a-z_]+>' | sort -u >"$work/standard.cpp"

declare -A best took
for run in 1 2 3 4 5; do
  for file in whole standard; do
    start=$(date +%s%N)
    "$compiler" -std=c++20 -I "$include" -c "$work/$file.cpp" -o "$work/$file.o"
    ms=$((($(date +%s%N) - start) / 1000000))
    took[$file]=$ms
    [[ -n ${best[$file]:-} ]] && ((best[$file] <= ms)) || best[$file]=$ms
  done
  printf 'run %d: %5d ms, its standard headers alone %5d ms\n' "$run" "${took[whole]}" "${took[standard]}"
done
printf 'best:  %5d ms (aim: under %d ms), its standard headers alone %5d ms\n' \
  "${best[whole]}" "$aim_ms" "${best[standard]}"
lines=$("$compiler" -std=c++20 -I "$include" -E -P "$work/whole.cpp" | wc -l)
printf 'lines after preprocessing: %d (limit %d)\n' "$lines" "$limit_lines"
((lines <= limit_lines))
