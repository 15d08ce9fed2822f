#!/usr/bin/env bash
# The program of docs/from-pytorch.md: all commands of gradual-lab on a model of one's own.
# own_program.sh PROGRAM FOLDER
set -u
program=$1 out=$2 bad=0
rm -rf "$out"
mkdir -p "$out"
cd "$out" || exit 1

# shows WHAT PATTERN ARGUMENT...: the command succeeds and prints the pattern.
shows() {
  local what=$1 pattern=$2
  shift 2
  "$program" "$@" >said 2>&1 || { echo "FAILED: $what"; cat said; bad=1; }
  grep -q -- "$pattern" said || { echo "FAILED: $what does not print $pattern"; cat said; bad=1; }
}

shows "a comparison" "$(basename "$program") step" \
  --model residual --recipes fp32,e3m2,mxfp4 --epochs 2 --seeds 1 --quiet --out run
shows "step" "linear in layer block.up" step run --recipe mxfp4 --step 5
shows "diff" "What the layers contribute" diff run e3m2 mxfp4 --step 5
shows "xray" "block.down" xray run --recipe mxfp4 --step 5
shows "explain" "e3m2, seed 0" explain run --recipe e3m2 --explain-steps 4000 --out set.json
shows "a set again" "all losses have the same bits" explain run --recipe e3m2 --apply set.json
"$program" explain run --recipe mxfp4 --apply set.json >said 2>&1 && { echo "FAILED: a set of another recipe"; bad=1; }
grep -q "set.json is of the recipe e3m2, seed 0, and cannot be applied to mxfp4, seed 0" said || { cat said; bad=1; }
shows "search" "recipe.json" search run --formats e8m7,fp32 --seeds 1 --unseen 1 --trainings 4 --random 0
shows "help" "^  step " --help
"$program" --model residul >said 2>&1 && { echo "FAILED: a wrong model"; bad=1; }
grep -q "$(basename "$program"): no model 'residul'; .*residual and FILE.pt2" said || { cat said; bad=1; }
exit $bad
