# shellcheck shell=bash
# ./dev first-verdict: the README's path from a model of PyTorch to a verdict, timed. Sourced by dev.

# The README's commands on a model of PyTorch, up to the empty line after them.
pt2_commands() {
  sed -n '/^## A model of PyTorch$/,/^## /p' "$here/README.md" |
    sed -n '/^    python -c "$/,/^$/s/^    //p'
}

# timed NAME COMMAND...: runs it; its output goes to the log. Adds a line to the table: seconds, and those of processors.
timed() {
  local name=$1 TIMEFORMAT='%0R %0U %0S' used
  shift
  say "$name"
  used=$({ time "$@" >>"$log" 2>&1; } 2>&1) || {
    tail -n 40 "$log" >&2
    fail "first-verdict: '$name' failed (all output: $log)"
  }
  table+=$(awk -v name="$name" '{ printf "%-44s %5d s %7d s", name, $1, $2 + $3 }' <<<"$used")$'\n'
}

install_pytorch() {
  python3 -m venv "$dir/venv" &&
    "$dir/venv/bin/pip" install --quiet --retries 2 "${pip_options[@]}" torch
}

in_folder() { (cd "$dir" && PATH=$dir/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 "$@"); }

first_verdict() {
  local dir=$here/build/first-verdict log=$here/build/first-verdict.log table='' start=$SECONDS commands export_it lab
  local pip_options=()
  if [[ ${1:-} == --cold ]]; then
    pip_options=(--no-cache-dir)
    shift
  fi
  no_arguments first-verdict "$@"
  commands=$(pt2_commands)
  export_it=$(sed '/^\.\/dev lab /,$d' <<<"$commands")
  lab=$(grep '^\./dev lab ' <<<"$commands") || fail "first-verdict: README.md, 'A model of PyTorch', has no command ./dev lab"
  rm -rf "$dir"
  mkdir -p "$dir"
  : >"$log"
  need python3:python3
  python3 -c 'import ensurepip' 2>/dev/null || need ensurepip:python3-venv
  cp "$here/bench/first_verdict/mine.py" "$dir/"
  timed "pip install torch, in a new environment" install_pytorch
  timed "digits as x.npy and y.npy" in_folder python "$here/bench/first_verdict/data.py"
  timed "export" in_folder bash -c "$export_it"
  timed "the lab's program (0 s: it was built already)" "$here/dev" lab --version
  timed "the lab's verdicts" in_folder bash -c "${lab/#.\/dev/\"$here/dev\"}"
  printf '%-44s %7s %9s\n%s%-44s %5d s\n' step time processor "$table" "from pip install to the verdicts" $((SECONDS - start))
  printf 'load of the machine: %s; processors: %s\n' "$(cut -d' ' -f1-3 /proc/loadavg)" "$(nproc)"
}
