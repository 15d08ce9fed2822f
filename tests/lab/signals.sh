#!/usr/bin/env bash
# A signal in mid-training stops gradual-lab as Ctrl-C does: results.json and the report of the runs so far are written,
# and the status is 128 and the signal's number. A signal that the starter ignores stays ignored.
# signals.sh GRADUAL_LAB FOLDER
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

# start NAME COMMAND...: trains by COMMAND in the background, and returns once training has begun.
start() {
  local name=$1
  shift
  "$@" "$lab" --model mlp --recipes fp32 --epochs 100000 --out "$out/$name" >"$out/$name.log" 2>&1 &
  for ((i = 0; i < 300; ++i)); do
    grep -qs 'mlp on' "$out/$name.log" && break
    sleep 0.1
  done
  sleep 0.5
}

for signal in INT:2 TERM:15 HUP:1; do
  name=${signal%:*}
  start "$name" env --default-signal=INT  # a shell without job control ignores SIGINT for what it starts with &
  kill -s "$name" $!
  wait $!
  check "$name" $((128 + ${signal#*:})) $?
done

# Under nohup SIGHUP stops nothing, and under a shell without job control SIGINT does not; SIGTERM does.
start NOHUP nohup
kill -s HUP $!
kill -s INT $!
sleep 1
kill -0 $! || { echo "nohup: ended by a signal that was ignored"; status=1; }
kill -s TERM $!
wait $!
check NOHUP 143 $?

# A pipe that is closed after one line.
"$lab" --model mlp --recipes fp32,tf32,bf16-pure --epochs 1 --out "$out/PIPE" 2>&1 | head -n 1 >"$out/PIPE.log"
check PIPE 141 "${PIPESTATUS[0]}"
exit $status
