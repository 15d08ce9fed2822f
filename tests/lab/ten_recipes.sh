#!/usr/bin/env bash
# Tasks that are no classification of images: each of ten recipes gets a verdict, by the task's own metric.
# ten_recipes.sh GRADUAL_LAB FOLDER
set -u
lab=$1 out=$2 bad=0
rm -rf "$out"
mkdir -p "$out"
cd "$out" || exit 1

recipes="fp32 amp-fp16 bf16-pure fp16-pure fp8-current e5m2 e4m3 mxfp6 e3m2 mxfp4"

# task NAME METRIC EPOCHS
task() {
  local recipe
  "$lab" --data "$1" --epochs "$3" --recipes "${recipes// /,}" --seeds 1 --quiet --out "$1" >said 2>log ||
    { echo "FAILED: $1"; cat said log; bad=1; }
  grep -q "^recipe  *verdict  *$2 " said || { echo "FAILED: $1 is not judged by $2"; cat said; bad=1; }
  for recipe in $recipes; do
    grep -Eq "^$recipe  *(baseline|matches|worse|worse loss|better|no learning|cannot tell yet|diverged at step [0-9]+) " said ||
      { echo "FAILED: $1 gives $recipe no verdict"; cat said; bad=1; }
  done
  grep -q "^fp16-pure  *diverged at step" said || { echo "FAILED: fp16-pure trains on $1"; cat said; bad=1; }
}

task regression rmse 3
task autoencoder rmse 3
task brackets accuracy 1
exit $bad
