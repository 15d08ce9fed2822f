#!/usr/bin/env bash
# Each command that gradual-lab prints is run, and compared with the run that it speaks of: a step's loss is the curve's.
# commands.sh GRADUAL_LAB FOLDER
set -u
lab=$1 out=$2 bad=0
rm -rf "$out"
mkdir -p "$out/with space"
cd "$out" || exit 1
cp "$lab" "with space/lab"
lab="with space/lab"

fail() { echo "FAILED: $1"; bad=1; }
# loss FOLDER RECIPE STEP: of seed 0, by curves.csv.
loss() { awk -F, -v r="$2" -v s="$3" '$1 == r && $2 == 0 && $3 == s {print $4}' "$1/curves.csv"; }
# same WHAT A B: two losses, one of them printed with nine digits.
same() {
  awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d * d <= 1e-16 * b * b) }' ||
    fail "$1: the command's loss is '$2', the run's '$3'"
}
# commands FILE: those of a table, one a line.
commands() { sed -e ':a' -e '/\\$/N; s/ \\\n */ /; ta' "$1" | sed -n "s|^    \\('with space/lab' \\)|\\1|p"; }
# follow FOLDER: runs what the table FOLDER.txt prints; sets `seen`.
follow() {
  seen=""
  while IFS= read -r command; do
    eval "words=($command)"
    kind=${words[1]}
    seen+=" $kind"
    step=$(sed -n 's/.*--step \([0-9]*\).*/\1/p' <<<"$command")
    case $kind in
      step)
        recipe=$(sed -n 's/.*--recipe \([^ ]*\).*/\1/p' <<<"$command")
        eval "$command" >said 2>&1 || { fail "$command"; cat said; }
        same "$command" "$(sed -n '1s/.*, loss //p' said)" "$(loss "$1" "${recipe##*:}" "$step")"
        "$lab" step "$1" --recipe "${recipe##*:}" --step "$step" >again 2>&1
        cmp -s said again || { fail "step $1, of $command"; diff said again | head; }
        ;;
      diff)
        first=${words[-2]##*:}
        eval "$command" >said 2>&1 || { fail "$command"; cat said; }
        same "$command" "$(sed -n '2s/^loss of [^ ]* \([0-9.e+-]*\),.*/\1/p' said)" "$(loss "$1" "$first" "$step")"
        "$lab" diff "$1" "$first" "${words[-1]##*:}" --step "$step" >again 2>&1
        cmp -s said again || { fail "diff $1, of $command"; diff said again | head; }
        ;;
      search)
        eval "$command --formats e8m7,fp32 --trainings 4 --seeds 1 --unseen 1 --random 0 --overwrite" >said 2>&1 || { fail "$command"; cat said; }
        ;;
      *) fail "a command of another kind: $command" ;;
    esac
  done < <(commands "$1.txt")
}

"$lab" --quiet --out default >default.txt 2>log || fail "the default run"
follow default
[[ $seen == *step*diff* ]] || fail "the default run prints$seen"

"$lab" --data regression --loss huber --metric mae --recipes fp32,e3m2,mxfp8 --epochs 3 --seeds 2 --batch 32 --lr 0.004 \
  --schedule linear --clip 1 --weight-decay 0.1 --quiet --out regression >regression.txt 2>log || fail "a regression"
follow regression
[[ $seen == *step* ]] || fail "the regression prints$seen"

printf '[{"name": "small", "base": "e3m2"}, {"name": "half", "base": "mxfp6"}]' >two.json
"$lab" --model mlp --recipes fp32,two.json --epochs 2 --seeds 2 --deterministic --quiet --out file >file.txt 2>log ||
  fail "a file's recipes"
follow file
grep -q 'two.json:small' file.txt || fail "the file's recipe is not named"
[[ -n $seen ]] || fail "the file's recipes print no command"

# What a stopped run prints goes on with it. No machine finishes this training while the test looks.
endless=1000000

# stop_at_checkpoint COMMAND...: starts it, and stops it by SIGTERM after it has written a checkpoint.
stop_at_checkpoint() {
  touch started
  "$@" &
  local running=$!
  for ((i = 0; i < 600; ++i)); do
    [[ -z $(find stopped/checkpoints -newer started -type f 2>/dev/null) ]] || break
    kill -0 $running 2>/dev/null || break
    sleep 0.1
  done
  kill -TERM $running
  for ((i = 0; i < 600; ++i)); do
    kill -0 $running 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL $running 2>/dev/null
  fail "a stopped run does not end"
}
stop_at_checkpoint "$lab" --model mlp --recipes fp32 --epochs $endless --seeds 1 --quiet --out stopped >stopped.txt 2>log
command=$(commands stopped.txt)
[[ $command == *"--epochs $endless"*"--resume" ]] || { fail "a stopped run prints '$command'"; cat stopped.txt log; }
stop_at_checkpoint eval "exec $command" >said 2>log
grep -q interrupted said || { fail "$command"; cat said log; }

# A folder that does not say how it was trained, and one with options of its own.
"$lab" step regression --recipe e3m2 --step 1 >again 2>&1 || fail "a folder alone"
"$lab" step regression --recipe e3m2 --step 1 --loss mse >said 2>&1 || fail "an option beside a folder"
[[ $(sed -n '1s/.*, loss //p' said) != $(sed -n '1s/.*, loss //p' again) ]] || fail "an option beside a folder is not taken"
mkdir old
sed '/"origin": {/,/}/d' regression/results.json >old/results.json
"$lab" step old --recipe e3m2 >said 2>&1 && fail "a folder without options is taken"
grep -q "does not say with which options" said || { fail "a folder without options"; cat said; }
exit $bad
