#!/usr/bin/env bash
# ranks.sh MPIEXEC RANKS ALONE PROGRAM ARGUMENT...: runs the program as one process, with the arguments ALONE as well,
# and as RANKS ranks. The last lines of both must be equal.
set -euo pipefail

mpiexec=$1 ranks=$2 alone=$3
shift 3
# shellcheck source=/dev/null
source "$(dirname "$0")/environment.sh"
check_mpi "$mpiexec"
# shellcheck disable=SC2086
one=$("$@" $alone | tail -n 1)
several=$(timeout -k 5 300 "$mpiexec" -n "$ranks" "$@" </dev/null | tail -n 1)
printf 'one process: %s\n%s ranks:     %s\n' "$one" "$ranks" "$several"
[[ -n $one && $one == "$several" ]] || { echo "they differ"; exit 1; }
