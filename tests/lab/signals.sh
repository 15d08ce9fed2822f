#!/usr/bin/env bash
# A signal in mid-training stops gradual-lab as Ctrl-C does: results.json and the report of what there is are written, and
# the status is 128 and the signal's number. signals.sh GRADUAL_LAB FOLDER
set -u
lab=$1 out=$2 status=0
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
rm -rf "$out"
mkdir -p "$out"

# check NAME WANTED GOT: the status, and the files.
check() {
  local bad=''
  [[ $3 == "$2" ]] || bad="status $3 instead of $2"
  for file in results.json report.html curves.csv; do
    [[ -s $out/$1/$file ]] || bad+=" no $file"
  done
  grep -q '"interrupted"' "$out/$1/results.json" 2>/dev/null || [[ $1 == PIPE ]] || bad+=" no run is called interrupted"
  [[ -z $(find "$out/$1" -name '.gradual-*.tmp') ]] || bad+=" temporary files are left"
  if [[ $bad ]]; then echo "SIG$1: $bad"; status=1; else echo "SIG$1: ok"; fi
}

for signal in INT:2 TERM:15 HUP:1; do
  name=${signal%:*}
  # a shell without job control starts what is in the background with SIGINT ignored; the program sets its own handler
  "$lab" --model mlp --recipes fp32 --epochs 100000 --out "$out/$name" >"$out/$name.log" 2>&1 &
  for ((i = 0; i < 300; ++i)); do
    grep -q 'mlp on' "$out/$name.log" && break
    sleep 0.1
  done
  sleep 0.5
  kill -s "$name" $!
  wait $!
  check "$name" $((128 + ${signal#*:})) $?
done

# A pipe that is closed after one line.
"$lab" --model mlp --recipes fp32,tf32,bf16-pure --epochs 1 --out "$out/PIPE" 2>&1 | head -n 1 >"$out/PIPE.log"
check PIPE 141 "${PIPESTATUS[0]}"
exit $status
