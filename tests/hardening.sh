#!/usr/bin/env bash
# hardening.sh HARDENED PROGRAM...: each program loads libraries from folders of absolute paths alone. HARDENED is ON for
# an optimised build without sanitizers: then they are position independent, all that is relocated is read-only before
# main, and stacks and copies are checked.
set -u
hardened=$1 bad=0
shift

fail() { echo "FAILED: $1: $2"; bad=1; }

for program in "$@"; do
  dynamic=$(readelf -dW "$program")
  paths=$(sed -nE 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]/\2/p' <<<"$dynamic")
  # an empty entry is the current folder
  if [[ -n $paths ]]; then
    while IFS= read -r -d : folder; do
      [[ $folder == /* || $folder == \$ORIGIN* ]] || fail "$program" "searches for libraries in '$folder' ($paths)"
    done <<<"$paths:"
    [[ $paths != *: ]] || fail "$program" "searches for libraries in the current folder ($paths)"
  fi
  [[ $hardened == ON ]] || continue
  grep -q 'Type: *DYN' <(readelf -hW "$program") || fail "$program" "is not position independent"
  grep -q 'GNU_RELRO' <(readelf -lW "$program") || fail "$program" "has no RELRO"
  grep -qE 'BIND_NOW|Flags:.*NOW' <<<"$dynamic" || fail "$program" "binds lazily, so RELRO is partial"
  symbols=$(readelf -sW --dyn-syms "$program")
  grep -q '__stack_chk_fail' <<<"$symbols" || fail "$program" "has no stack protector"
  grep -qE '__[a-z]+_chk@' <<<"$symbols" || fail "$program" "calls no function that _FORTIFY_SOURCE checks"
done
exit $bad
