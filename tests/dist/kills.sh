#!/usr/bin/env bash
# kills.sh MPIEXEC PROGRAM FOLDER [KILLS [ARGUMENT...]]: trains with 3 ranks and kills one of them at a random moment,
# again and again. The program gets the arguments too. Each time all ranks must end within 20 s, and the checkpoint must
# be whole. The training is then finished by 2 ranks and must have the bits of one that was never stopped. At last a rank
# is stopped: another one must name it after one timeout, however many ranks have answered.
set -euo pipefail

mpiexec=$1 program=$2 folder=$3 kills=${4:-2} epochs=6
# shellcheck source=/dev/null
source "$(dirname "$0")/environment.sh"
check_mpi "$mpiexec"
rm -rf "$folder"
mkdir -p "$folder"
more=("${@:5}")
arguments=(--recipe amp-fp16 --epochs "$epochs" "${more[@]}")
whole=$("$program" "${arguments[@]}" | tail -n 1)

# ranks_of FILE: the processes of the program that have it among their arguments
ranks_of() {
  local process
  for process in /proc/[0-9]*; do
    [[ $(readlink "$process/exe" 2>/dev/null) == "$program" ]] || continue
    tr '\0' '\n' 2>/dev/null <"$process/cmdline" | grep -qxF -- "$1" && basename "$process"
  done
}

# Sets `ranks` to the processes, once there are 3 or the launcher has ended.
find_ranks() {
  local tries
  for ((tries = 0; tries < 300; ++tries)); do
    mapfile -t ranks < <(ranks_of "$file")
    ((${#ranks[@]} == 3)) && break
    kill -0 "$launcher" 2>/dev/null || break  # it was quicker
    sleep 0.02
  done
}

slowest=0
for ((k = 1; k <= kills; ++k)); do
  file=$folder/$k.safetensors
  timeout -k 5 300 "$mpiexec" -n 3 "$program" "${arguments[@]}" --checkpoint "$file" >"$folder/$k.log" 2>&1 </dev/null &
  launcher=$!
  sleep "0.$((RANDOM % 9 + 1))"
  find_ranks
  sleep "0.$((RANDOM % 9))"
  start=$SECONDS
  if ((${#ranks[@]} == 3)) && kill -KILL "${ranks[RANDOM % 3]}" 2>/dev/null; then
    status=0
    wait "$launcher" || status=$?
    ((status != 0)) || { echo "kill $k: the launcher reports success"; exit 1; }
    ((SECONDS - start <= 20)) || { echo "kill $k: the others ended after $((SECONDS - start)) s"; exit 1; }
    ((SECONDS - start <= slowest)) || slowest=$((SECONDS - start))
    grep -qiE 'killed|signal 9|exit status: 9' "$folder/$k.log" || { cat "$folder/$k.log"; echo "kill $k: no message"; exit 1; }
  else
    wait "$launcher"
  fi
  [[ -z $(ranks_of "$file") ]] || { echo "kill $k: a rank is left"; exit 1; }
  resumed=$(timeout -k 5 300 "$mpiexec" -n 2 "$program" "${arguments[@]}" --checkpoint "$file" </dev/null | tail -n 1)
  [[ $resumed == "$whole" ]] || { echo "kill $k: resumed '$resumed', never stopped '$whole'"; exit 1; }
done

seconds=4 file=$folder/silent.safetensors
GRADUAL_RANK_TIMEOUT=$seconds timeout -k 5 300 "$mpiexec" -n 3 "$program" --epochs 500 --exchange e4m3fn/gather \
  "${more[@]}" --checkpoint "$file" >"$folder/silent.log" 2>&1 </dev/null &
launcher=$!
find_ranks
((${#ranks[@]} == 3)) || { cat "$folder/silent.log"; echo "there are not 3 ranks to stop one of"; exit 1; }
sleep 0.5
for process in "${ranks[@]}"; do  # the last rank: it is waited for after the others
  ! grep -qzE '^(OMPI_COMM_WORLD_RANK|PMI_RANK)=2$' "/proc/$process/environ" || kill -STOP "$process"
done
start=$SECONDS status=0
wait "$launcher" || status=$?
silent=$((SECONDS - start))
((status != 0)) || { echo "a rank is silent, and the launcher reports success"; exit 1; }
grep -q "waited $seconds s (GRADUAL_RANK_TIMEOUT) for rank [0-2], which is silent or gone" "$folder/silent.log" ||
  { cat "$folder/silent.log"; echo "no rank names the silent one"; exit 1; }
((silent < 2 * seconds)) || { echo "the silent rank is named after $silent s, not $seconds"; exit 1; }
echo "$kills kills: nothing lost; the others ended within $slowest s; a silent rank is named after $silent s"
