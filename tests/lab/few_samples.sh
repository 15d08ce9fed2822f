#!/usr/bin/env bash
# Every model and every command with no, one and two samples: an error that says what is missing, or a result.
# few_samples.sh GRADUAL_LAB FOLDER
set -u
lab=$1 out=$2 bad=0
rm -rf "$out"
mkdir -p "$out"
cd "$out" || exit 1

# npy DTYPE SHAPE COUNT BYTES: a file of COUNT elements, each of these bytes.
npy() {
  local header="{'descr': '$1', 'fortran_order': False, 'shape': ($2), }" k
  printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "$header"
  for ((k = 0; k < $3; ++k)); do printf '%b' "$4"; done
}

# try WANTED MESSAGE ARGUMENT...: an error (2) or a result (0).
try() {
  local wanted=$1 message=$2 status=0
  shift 2
  timeout 120 "$lab" "$@" >log 2>&1 || status=$?
  [[ $status == "$wanted" ]] && grep -q -- "$message" log && return
  echo "FAILED: gradual-lab $*: status $status instead of $wanted, '$message'"
  tail -n 5 log
  bad=1
}

for count in 0 1 2; do
  npy '<f4' "$count, 1, 8, 8" $((count * 64)) '\x00\x00\x00\x3f' >images$count.npy
  npy '<i8' "$count," "$count" '\x01\x00\x00\x00\x00\x00\x00\x00' >labels$count.npy
done

few=(--epochs 1 --threads 1)
for model in mlp cnn resnet20 vit lstm; do
  for count in 0 1; do
    message="the number of samples is $count; it must be at least 2"
    [[ $count == 1 ]] || message="none of them empty"
    data=(--data "npy:images$count.npy,labels$count.npy" --model "$model" "${few[@]}")
    try 2 "$message" --recipes fp32 --quiet --overwrite --out run "${data[@]}"
    for command in "step --step 0" "diff fp32 e4m3 --step 0" "xray --step 0" "exchange --ranks 1 --step 0" search; do
      # shellcheck disable=SC2086
      try 2 "$message" $command "${data[@]}"
    done
  done
  data=(--data npy:images2.npy,labels2.npy --model "$model" "${few[@]}")
  try 0 "fp32 " --recipes fp32,mxfp8 --quiet --overwrite --out run "${data[@]}"
  try 0 "Who loses the bits" step --step 0 --recipe e4m3 "${data[@]}"
  try 0 "What the layers contribute" diff fp32 e4m3 --step 0 "${data[@]}"
  try 0 "" xray --step 0 "${data[@]}"
  try 0 "1 samples" exchange --ranks 1 --step 0 "${data[@]}"
  try 2 "2 ranks, but the data have 1 samples" exchange --ranks 2 --step 0 "${data[@]}"
done
data=(--data npy:images2.npy,labels2.npy --model mlp "${few[@]}")
try 0 "recipe.json" search --formats e4m3,fp32 --seeds 1 --unseen 1 --trainings 6 --overwrite --out search --step 0 "${data[@]}"
try 2 "" --model gpt --recipes fp32 --quiet --overwrite --out run --data npy:images2.npy,labels2.npy
for length in 0 1 2; do
  head -c $length /dev/zero | tr '\0' a >text$length
  try 2 "gradual-lab: .*text$length" --recipes fp32 --quiet --overwrite --out run --data "text:text$length" "${few[@]}"
done
exit $bad
