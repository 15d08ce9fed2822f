# shellcheck shell=bash
# ./dev loc: how much there is. Sourced by dev.

library_folders=(core autograd nn optim amp data)
# Features built on the framework, in their own files.
format_files=('core/formats/format*' 'core/formats/rounding*' 'core/quantize/*' 'core/formats/accumulat*' 'core/cpu/rounded_*'
  'core/ops/conv_by_gemm*' 'amp/quanti*' 'amp/json/quanti*' 'amp/cast_stats*' 'optim/quanti*')
# dist/ and what it adds to the folders below and above it.
dist_files=('dist/*' 'amp/exchange*' 'amp/json/exchange*' 'lab/share*' 'lab/main/exchange*' 'lab/main/ranks*')

# Lines of every folder by kind, as git sees the tree; then of some parts.
loc() {
  local folder lines code total=0 total_lines=0
  # count PATTERN...: prints "lines code"; prose is not code
  count() {
    in_tree ls-files -z --cached --others --exclude-standard -- "$@" | sort -zu | existing | (cd "$here" && xargs -0 awk '
      { ++n } /[^[:space:]]/ && !/^[[:space:]]*\/\// && FILENAME !~ /\.md$/ { ++c } END { print n + 0, c + 0 }')
  }
  # row NAME PATTERN...
  row() {
    read -r lines code < <(count "${@:2}")
    printf '%-14s %8d %8d\n' "$1" "$lines" "$code"
  }
  printf '%-14s %8s %8s   (code: neither blank, nor only a comment, nor prose)\n' folder lines code
  for folder in "${library_folders[@]}" cuda inspect dist pt2 lab examples tests bench cmake docs; do
    [[ -d $here/$folder ]] || continue
    row "$folder" "$folder/*.cpp" "$folder/*.h" "$folder/*.def" "$folder/*.cu" "$folder/*.cuh" "$folder/*.cmake" \
      "$folder/*CMakeLists.txt" "$folder/*.html.in" "$folder/*.js" "$folder/*.css" "$folder/*.md" "$folder/*.py" "$folder/*.sh"
    if [[ " ${library_folders[*]} " == *" $folder "* ]]; then
      total=$((total + code))
      total_lines=$((total_lines + lines))
    fi
  done
  printf 'the library (%s): %d lines, %d of code\n' "${library_folders[*]}" "$total_lines" "$total"
  printf 'parts across folders:\n'
  row formats "${format_files[@]}"
  row 'CPU kernels' 'core/cpu/*' 'core/onednn/*' 'core/kernels/*'
  row distributed "${dist_files[@]}"
  row 'CUDA alone' 'cuda/*' ':!cuda/emulator/*'
  row 'report page' 'lab/*.js' 'lab/*.css' 'lab/*.in'
  # Long functions, for a second look. A function goes from a line without indentation that has a "(" to the next "}"
  # without indentation; members inside classes are not seen.
  cpp_files | (cd "$here" && xargs -0 awk '
    FILENAME !~ /^(core|autograd|nn|optim|amp|data|cuda|inspect|dist|pt2|lab)\// { next }
    FNR == 1 { start = 0 }
    { sub(/ *\/\/.*/, "") }
    /^[A-Za-z_\[].*\(/ && !/^(namespace|struct|class|enum|union|extern|using|template.*;)/ { start = FNR; open = 0 }
    start && /\{/ { open = 1 }
    start && ((!open && /;$/) || (start == FNR && /\}$/)) { start = 0 }
    /^}/ {
      if (start && FNR - start + 1 > 60) printf "function of %d lines: %s:%d\n", FNR - start + 1, FILENAME, start
      start = 0
    }')
}
