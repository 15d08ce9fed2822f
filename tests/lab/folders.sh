#!/usr/bin/env bash
# Where gradual-lab puts its results: a new folder each time, `latest`, --resume, --overwrite, compare and report.
# folders.sh GRADUAL_LAB FOLDER
set -u
lab=$1 out=$2 bad=0
rm -rf "$out"
mkdir -p "$out"
cd "$out" || exit 1
quick=(--model mlp --recipes fp32 --epochs 1 --seeds 1 --quiet)

# expect WHAT COMMAND...: the command must succeed.
expect() { local what=$1; shift; "$@" >log 2>&1 || { echo "FAILED: $what"; cat log; bad=1; }; }
# refuse WHAT MESSAGE COMMAND...: it must fail with that message.
refuse() {
  local what=$1 message=$2; shift 2
  if "$@" >log 2>&1 || ! grep -q -- "$message" log; then echo "FAILED: $what"; cat log; bad=1; fi
}

refuse "--resume without a run" "there is no gradual-lab-out/latest" "$lab" "${quick[@]}" --resume
expect "a first run" "$lab" "${quick[@]}"
first=$(readlink gradual-lab-out/latest)
expect "a second run" "$lab" "${quick[@]}"
expect "two folders" test "$(readlink gradual-lab-out/latest)" != "$first" -a -s "gradual-lab-out/$first/results.json"
expect "--resume" "$lab" "${quick[@]}" --resume
expect "no third folder" test "$(find gradual-lab-out -mindepth 1 -maxdepth 1 -type d | wc -l)" = 2
expect "--out" "$lab" "${quick[@]}" --out mine
for file in results.json runs.csv curves.csv report.html; do expect "$file" test -s "mine/$file"; done
refuse "--out again" "holds the results of an earlier comparison" "$lab" "${quick[@]}" --out mine
expect "--overwrite" "$lab" "${quick[@]}" --out mine --overwrite
refuse "--resume and --overwrite" "exclude each other" "$lab" "${quick[@]}" --out mine --resume --overwrite
expect "compare" "$lab" compare mine "gradual-lab-out/$first"
expect "both are in it" grep -q "fp32 (gradual-lab-out/$first)" gradual-lab-compare/results.json
refuse "compare of one" "takes two folders or more" "$lab" compare mine
refuse "compare again" "holds the results" "$lab" compare mine "gradual-lab-out/$first"
rm mine/report.html
expect "report" "$lab" report mine
expect "report.html" test -s mine/report.html
refuse "a figure without Chromium" "install the package chromium" env PATH=/nowhere "$lab" figure mine
refuse "a figure of an unknown kind" "--kind" "$lab" figure --kind pie mine
if command -v chromium >/dev/null; then
  for kind in loss histogram heatmap; do
    expect "figure $kind" "$lab" figure --kind $kind mine
    expect "$kind.svg stands alone" grep -q '^<svg xmlns=.*viewBox' mine/$kind.svg
  done
  refuse "bits of one recipe" "no figure of this kind" "$lab" figure --kind pareto mine
  expect "bits of two" "$lab" figure --kind pareto gradual-lab-compare
  expect "a figure as PDF" "$lab" figure --format pdf --out loss.pdf mine
  expect "loss.pdf" grep -aq '^%PDF' loss.pdf
fi
refuse "report of nothing" "holds no results.json" "$lab" report gradual-lab-out
[[ $("$lab" --version) =~ ^gradual-lab\ [0-9]+\.[0-9]+ ]] || { echo "FAILED: --version"; bad=1; }
exit $bad
