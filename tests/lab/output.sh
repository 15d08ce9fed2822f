#!/usr/bin/env bash
# What gradual-lab does where its output is lost, and with names that a terminal would obey or a folder would not take.
# output.sh GRADUAL_LAB FOLDER
set -u
lab=$1 out=$2 bad=0
rm -rf "$out"
mkdir -p "$out"
cd "$out" || exit 1
train=(--model mlp --epochs 1 --seeds 1 --quiet --overwrite --out results)
quick=("${train[@]}" --recipes fp32)

fail() { echo "FAILED: $1"; cat log; bad=1; }
# status WHAT WANTED GOT MESSAGE: of a call whose stderr is in `log`.
status() {
  [[ $3 == "$2" ]] || fail "$1: status $3 instead of $2"
  [[ -z $4 ]] || grep -q -- "$4" log || fail "$1: no message"
}

"$lab" "${quick[@]}" 2>log >/dev/full
status "a full stdout" 1 $? "stdout could not be written"
[[ -s results/results.json ]] || fail "no results"
"$lab" "${quick[@]}" 2>log >&-
status "a closed stdout" 1 $? "stdout could not be written"
"$lab" report results 2>log >/dev/full
status "report" 1 $? "stdout could not be written"
"$lab" --list-recipes 2>log >/dev/full
status "a list" 1 $? "stdout could not be written"
"$lab" --help 2>log >/dev/full
status "help" 1 $? "stdout could not be written"
"$lab" "${quick[@]}" >&- 2>&- <&- || true  # must not write its messages into its files
grep -q '^{' results/results.json || fail "all streams closed: results.json is no JSON"
"$lab" "${quick[@]}" >table 2>log
status "a file" 0 $? ""
grep -q '^fp32 ' table || fail "no table"

# Options of verdicts that make no sense.
for wrong in "--until often" "--until decided:0" "--until decided:" "--margin 0" "--loss-margin -1"; do
  "$lab" "${quick[@]}" $wrong 2>log >/dev/null
  status "$wrong" 2 $? "${wrong%% *} is .*\(allowed are decided and decided:MAX\|must be positive\)"
done

# No control character comes out, however it came in.
escape=$'\033[31m'
printf '[{"name": "a\\u001b[31m", "base": "fp32"}]' >named.json
"$lab" "${train[@]}" --recipes "fp3$escape" 2>log >/dev/null
status "a recipe of no name" 2 $? 'fp3\\x1b\[31m'
"$lab" "${train[@]}" --recipes named.json 2>log >/dev/null
status "a recipe's name" 2 $? "its name has a control character"
printf 'abcdefgh%.0s' {1..100} >"text$escape"
"$lab" --quiet --recipes fp32 --epochs 1 --data "text:text$escape" --out text 2>log >/dev/null
status "the name of the data" 2 $? "the name of the data, 'text:text.x1b.31m', has a control character"
sed 's/"recipe": "fp32"/"recipe": "fp32\\u001b[31m"/' results/results.json >edited.json
mkdir -p edited
mv edited.json edited/results.json
"$lab" report edited 2>log >/dev/null
status "an edited file" 2 $? 'edited/results.json: runs\[0\].recipe is "fp32.*a text without control characters is expected'
cp -r results "copy$escape"
"$lab" compare results "copy$escape" --out both >table 2>log
status "a folder's name" 0 $? ""
! grep -q $'\033' table log || fail "an escape sequence came out"

# Names of files.
long=$(printf 'n%.0s' {1..250})
printf '[{"name": "%s", "base": "fp32"}]' "$long" >long.json
start=$SECONDS
"$lab" --model mlp --recipes long.json --epochs 1000 --quiet --out long 2>log >/dev/null
status "a name of 250 characters" 2 $? "gives files whose names have 268 bytes; at most 242 are allowed"
((SECONDS - start < 10)) || fail "a name of 250 characters: found after $((SECONDS - start)) s"
[[ ! -e long ]] || fail "a name of 250 characters: the folder is made"
printf '[{"name": "a/b", "base": "fp16-pure"}, {"name": "a_b", "base": "fp32"}, {"name": "a:b", "base": "bf16-pure"}]' >same.json
"$lab" --model mlp --recipes same.json --epochs 1 --seeds 1 --quiet --out same --save saved >table 2>log
status "names that were one file" 0 $? ""
[[ $(find saved -type f -name 'a*' | wc -l) == 3 ]] || fail "names that were one file: $(ls saved)"

# Two processes and one folder.
"$lab" --model mlp --recipes fp32 --epochs 100000 --quiet --out both2 >first 2>&1 &
first=$!
for ((i = 0; i < 300; ++i)); do
  [[ -e both2/.lock ]] && break
  sleep 0.1
done
for option in --resume --overwrite; do
  "$lab" --model mlp --recipes fp32 --epochs 1 --quiet --out both2 $option >/dev/null 2>log
  status "two processes, $option" 2 $? "process $first, or one that it started, writes into the folder both2"
done
kill -KILL $first
wait $first 2>/dev/null
"$lab" --model mlp --recipes fp32 --epochs 1 --quiet --out both2 --overwrite >/dev/null 2>log
status "after the first is killed" 0 $? ""
[[ ! -e both2/.lock ]] || fail "the lock stays"

# Two processes without --out get a folder each.
for k in 1 2 3; do "$lab" --model mlp --recipes fp32 --epochs 1 --seeds 1 --quiet >/dev/null 2>"log$k" & done
wait
[[ $(find gradual-lab-out -name results.json | wc -l) == 3 ]] || fail "three processes, $(ls gradual-lab-out)"
"$lab" --recipes fp31 --quiet >/dev/null 2>&1
[[ $(find gradual-lab-out -mindepth 1 -maxdepth 1 -type d | wc -l) == 3 ]] || fail "a folder of a call with an error"
exit $bad
