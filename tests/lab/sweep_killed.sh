#!/usr/bin/env bash
# A sweep that is killed and resumed has the results of one that ran without a break.
# usage: sweep_killed.sh GRADUAL_LAB
set -euo pipefail
lab=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat >sweep.json <<'JSON'
{"recipe": "mxfp4", "options": {"model": "mlp", "epochs": 1, "seeds": 3},
 "factors": {"lr": [0.001, 0.002, 0.004, 0.008],
             "gradients": {"nearest": {},
                           "stochastic": {"recipe": {"quantization": {"dgrad_dy": {"rounding": "stochastic"}}}}}}}
JSON

"$lab" sweep sweep.json --out whole --quiet --latex --threads 1 >whole.txt 2>&1 && { echo "--threads was accepted"; exit 1; }
"$lab" sweep sweep.json --out whole --quiet --latex >whole.txt
grep -q '^8 combinations of 2 factors, 3 seeds' whole.txt
grep -q '\\toprule' whole/terms.tex

"$lab" sweep sweep.json --out killed --quiet --jobs 2 >/dev/null &
pid=$!
for ((i = 0; i < 1000; ++i)); do
  [[ -e killed/part-2/checkpoints ]] && break
  sleep 0.02
done
kill -9 "$pid"
wait "$pid" 2>/dev/null && { echo "the sweep was not killed"; exit 1; }
[[ ! -e killed/effects.json ]]

said=$("$lab" sweep sweep.json --out killed --quiet 2>&1) && { echo "a sweep was replaced"; exit 1; }
grep -q 'holds a sweep already' <<<"$said"
sed 's/0.008/0.016/' sweep.json >other.json
said=$("$lab" sweep other.json --out killed --resume --quiet 2>&1) && { echo "another sweep was resumed"; exit 1; }
grep -q 'was begun by another file' <<<"$said"

# the workers of the killed process end with it, and may hold the folder until then
for ((i = 0; i < 100; ++i)); do
  "$lab" sweep sweep.json --out killed --resume --quiet --jobs 2 >resumed.txt 2>error.txt && break
  grep -q 'writes into the folder' error.txt || { cat error.txt; exit 1; }
  sleep 0.1
done
cmp whole/effects.json killed/effects.json
cmp whole/combinations.csv killed/combinations.csv
cmp whole/sweep.html killed/sweep.html
cmp <(grep -v '^results:' whole.txt) <(grep -v '^results:' resumed.txt)
