#!/usr/bin/env bash
# differ.sh MPIEXEC GRADUAL_LAB DATA_PARALLEL FOLDER: ranks of which one has another option. All must end soon, with a
# message that names the option, the ranks and both values. Measured on a busy machine: 0.5 to 0.9 s, and 1.6 s for a
# program that first loads data. The limits only catch ranks that wait for each other.
set -u
mpiexec=$1 lab=$2 program=$3 out=$4 bad=0
# shellcheck source=/dev/null
source "$(dirname "$0")/environment.sh"
check_mpi "$mpiexec"
rm -rf "$out"
mkdir -p "$out"
cd "$out" || exit 1

# refuse WHAT SECONDS MESSAGE COMMAND...: it must fail with that message, in so many seconds at most.
refuse() {
  local what=$1 most=$2 message=$3 status=0 start=${EPOCHREALTIME/./}
  shift 3
  timeout -k 5 120 "$@" >log 2>&1 </dev/null || status=$?
  local took=$((${EPOCHREALTIME/./} - start))  # us
  [[ $status != 0 && $status != 124 ]] && ((took <= most * 1000000)) && grep -qE -- "$message" log && return
  echo "FAILED: $what: status $status after $((took / 1000)) ms, at most $most s, expected '$message'"
  cat log
  bad=1
}

# as_rank RANK DIR COMMAND...: what rank RANK of both_ranks runs, in that folder.
as_rank() {
  printf 'cd %q && exec' "$2" >"rank$1.sh"
  printf ' %q' "${@:3}" >>"rank$1.sh"
}
# Two ranks whose commands differ. Open MPI 5.0.7 crashes on its own syntax for that, COMMAND : COMMAND.
both_ranks=("$mpiexec" -n 2 bash -c "source '$out'/rank\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}.sh")

same=("$lab" --model mlp --recipes fp32,tf32 --epochs 1 --seeds 1 --quiet --overwrite --threads 1)
for mode in "--parallel data" ""; do
  for option in "--lr 0.5" "--optimizer sgd" "--batch 32" "--seeds 2" "--epochs 2" "--recipes fp32" "--model cnn" "--cure"; do
    name=${option%% *}
    words=("${same[@]}")
    for i in "${!same[@]}"; do
      [[ ${same[i]} != "$name" ]] || unset "words[i]" "words[i+1]"
    done
    # shellcheck disable=SC2086
    as_rank 0 "$out" "${same[@]}" --out results $mode
    # shellcheck disable=SC2086
    as_rank 1 "$out" "${words[@]}" --out results $option $mode
    refuse "$mode $option" 15 "the ranks differ in $name: rank 0 has '.*', rank 1 has '" "${both_ranks[@]}"
  done
done
for scale in 1024 2048; do
  mkdir $scale
  printf '[{"name": "mine", "base": "amp-fp16", "scaling": {"kind": "static", "init_scale": %s}}]' $scale >$scale/mine.json
done
mine=("$lab" --model mlp --recipes mine.json --epochs 1 --quiet --overwrite --out "$out/results" --threads 1)
for mode in "--parallel data" ""; do
  # shellcheck disable=SC2086
  as_rank 0 "$out/1024" "${mine[@]}" $mode
  # shellcheck disable=SC2086
  as_rank 1 "$out/2048" "${mine[@]}" $mode
  refuse "$mode, another recipe of the same name" 15 "the recipe mine: rank 0 has '.*1024.*', rank 1 has '.*2048" \
    "${both_ranks[@]}"
done
as_rank 0 "$out" "$program" --epochs 1
as_rank 1 "$out" "$program" --epochs 1 --recipe fp32
refuse "another recipe" 15 "the ranks differ in recipe: rank 0 has '" "${both_ranks[@]}"
as_rank 1 "$out" "$program" --epochs 2
refuse "one rank ends before the other" 30 "rank [01] waits for rank [01], which has ended without error" \
  "${both_ranks[@]}"

# With the same options nothing stays behind.
TMPDIR=$out/tmp
export TMPDIR
mkdir -p "$TMPDIR/gradual-lab-rank1-killed"
touch "$TMPDIR/gradual-lab-rank1-killed/.gradual-lives"
timeout -k 5 300 "$mpiexec" -n 2 "${same[@]}" --out results >log 2>&1 </dev/null || { echo "FAILED: shared runs"; cat log; bad=1; }
for _ in 1 2; do
  timeout -k 5 300 "$mpiexec" -n 2 "${same[@]}" --parallel data --out parallel >log 2>&1 </dev/null ||
    { echo "FAILED: data-parallel runs"; cat log; bad=1; }
  words=("${same[@]/--overwrite/--resume}")
  timeout -k 5 300 "$mpiexec" -n 2 "${words[@]}" --parallel data --out parallel >log 2>&1 </dev/null ||
    { echo "FAILED: resumed data-parallel runs"; cat log; bad=1; }
done
left=$(find results parallel -name '*lock*'; find "$TMPDIR" -maxdepth 1 -name 'gradual-lab-*')
[[ -z $left ]] || { echo "FAILED: left behind: $left"; bad=1; }
exit $bad
