#!/usr/bin/env bash
# session.sh DEBUGGER TOPIC PROGRAM SOURCE: a session of gdb or lldb with session.cpp (way: with training_step.cpp).
#   values   what the debugger shows of each variable in expected.txt
#   dump     what `call gradual_dump(x)` prints
#   names    gdb: all named formats have the library's own names
#   step     gdb: the functions that `step` enters from the call of a layer to its kernel
#   way      gdb: a training step enters the functions that docs/a-training-step.md names, in its order
# The status is 77 where the debugger is absent or may not trace a program here.
set -euo pipefail

debugger=$1 topic=$2 program=$3 source=$4 here=$4/tests/debugger
skip() { echo "SKIPPED: $*"; exit 77; }
command -v "$debugger" >/dev/null || skip "no $debugger on this machine (Debian: gdb, lldb)"

in_gdb() {
  "$debugger" -nx -batch -iex "add-auto-load-safe-path $source/cmake/debugger" -iex 'set breakpoint pending off' \
    -iex 'set debuginfod enabled off' -ex 'set width 0' "$@" "$program" 2>&1 </dev/null
}
in_lldb() {
  "$debugger" --no-lldbinit -b -o "command script import $source/cmake/debugger/gradual_printers.py" \
    -o 'breakpoint set --name shown' -o run -o up "$@" "$program" 2>&1 </dev/null
}
kind=gdb
[[ $debugger != *lldb* ]] || kind=lldb
if [[ $kind == gdb ]]; then probe=$(in_gdb -ex 'break shown' -ex run); else probe=$(in_lldb); fi || true
if grep -qiE 'ptrace.*(not permitted|denied)|personality set failed|Operation not permitted' <<<"$probe" &&
  ! grep -qE 'Breakpoint 1, |stop reason = breakpoint' <<<"$probe"; then
  skip "$debugger may not trace a program here"
fi
! grep -qE 'unable to find any|No module named|Python not enabled' <<<"$probe" || skip "$debugger has no Python here: $probe"

commands=()
case $topic in
  values)
    while IFS= read -r name; do
      if [[ $kind == gdb ]]; then commands+=(-ex "print $name"); else commands+=(-o "frame variable $name"); fi
    done < <(sed 's/ = .*//' "$here/expected.txt")
    # a tensor whose memory holds anything is shown without an error
    if [[ $kind == gdb ]]; then
      output=$(in_gdb -ex 'break shown' -ex run -ex up "${commands[@]}" -ex 'print not_made' -ex 'print gpu')
      shown=$(sed -nE 's/^\$[0-9]+ = (\([^)]*\) @0x[0-9a-f]+: )?//p' <<<"$output")
      shown=$(paste -d'\n' <(sed 's/ = .*//' "$here/expected.txt"; printf 'not_made\ngpu\n') <(cat <<<"$shown") |
        sed 'N;s/\n/ = /')
    else
      output=$(in_lldb "${commands[@]}" -o 'frame variable not_made' -o 'frame variable gpu')
      shown=$(sed -nE 's/: \{$//; s/^\([^)]*\) ([a-z0-9_]+) = (0x[0-9a-f]+ )?/\1 = /p' <<<"$output")
    fi
    diff "$here/expected.txt" <(grep -vE '^(not_made|gpu) = ' <<<"$shown") || { cat <<<"$output"; exit 1; }
    grep -qE '^not_made = Tensor not readable' <<<"$shown" || { cat <<<"$output"; exit 1; }
    grep -qE '^gpu = Tensor (undefined|\[2, 3\] f32 cuda:0 \{on the GPU\})$' <<<"$shown" || { cat <<<"$output"; exit 1; } ;;
  dump)
    if [[ $kind == gdb ]]; then
      output=$(in_gdb -ex 'break shown' -ex run -ex up -ex 'call gradual_dump(weight)' -ex 'call gradual_dump(bf16)' \
        -ex 'call gradual_dump(undefined)') || true
    else
      output=$(in_lldb -o 'expression gradual_dump(weight)' -o 'expression gradual_dump(bf16)' \
        -o 'expression gradual_dump(undefined)')
    fi
    # gdb 13 does not know the tile registers of newer Intel processors, and fails to restore them after a call.
    ! grep -q "Couldn't write extended state status" <<<"$output" || skip "$debugger cannot call functions on this processor"
    for line in 'requires_grad=True' 'of 6 elements 0 are 0, 0 are Inf or NaN; the others have min 0.5, max 0.5, mean 0.5' \
      '^gradient: tensor\(\[\[5\., 7\., 9\.\],' 'of 4 elements 0 are 0, 1 are Inf or NaN' '^tensor\(undefined\)'; do
      grep -qE -- "$line" <<<"$output" || { cat <<<"$output"; echo "missing: $line"; exit 1; }
    done ;;
  names)
    output=$(in_gdb -ex "source $here/names.py" -ex run)
    cat <<<"$output"
    grep -qE '^same names: [0-9]{2}$' <<<"$output" && ! grep -q '^differs: ' <<<"$output" ;;
  step)
    output=$(in_gdb -x "$source/cmake/debugger/skips.gdb" -ex "source $here/step.py")
    cat <<<"$output"
    grep -q '^from the layer to its kernel in [0-9]* steps$' <<<"$output" ;;
  way)
    output=$(in_gdb -ex "set \$page = \"$source/docs/a-training-step.md\"" -ex "source $here/way.py")
    cat <<<"$output"
    grep -q "^the page's way is the program's: [0-9]* functions$" <<<"$output" ;;
esac
