# shellcheck shell=bash
# ./dev gpu-check: every check that needs a GPU. Sourced by dev.

gpu_check() {
  local out=$here/gpu-report quick=0 seconds=530 dir=$here/build/gpu start=$SECONDS status=0
  while (($#)); do
    case $1 in
      --out) out=${2:?--out takes a folder}/gpu-report; mkdir -p "$2"; shift ;;
      --quick) quick=1 ;;
      --seconds) seconds=${2:?--seconds takes a number}; shift ;;
      *) fail "gpu-check: unknown argument $1 (there are --out DIR, --quick and --seconds N)" ;;
    esac
    shift
  done
  # checks the needs of all stages before the build, which takes minutes
  [[ $seconds =~ ^[0-9]+$ ]] || fail "gpu-check: --seconds takes a whole number, given $seconds"
  command -v nvidia-smi >/dev/null || fail "gpu-check: no nvidia-smi here, so no GPU to check"
  local gpus
  gpus=$(nvidia-smi -L 2>&1) || true
  [[ $gpus == *'GPU '[0-9]*': '* ]] || fail "gpu-check: nvidia-smi shows no GPU: $gpus"
  command -v python3 >/dev/null || fail "gpu-check: no python3 here, which runs the stages and writes the report"
  command -v cmake >/dev/null && command -v ninja >/dev/null || need "${base[@]}" "${for_tests[@]}" "${for_bench[@]}"
  drop_moved "$dir"
  mkdir -p "$dir"
  say "configuring build/gpu"
  # for the present GPU, which may differ from that of the last call (-U); the tests' target builds the examples, too;
  # the consumer projects prove nothing about a GPU
  cmake -S "$here" -B "$dir" -G Ninja -U CMAKE_CUDA_ARCHITECTURES -U GRADUAL_NVIDIA_SMI \
    -DCMAKE_BUILD_TYPE=Release -DGRADUAL_CUDA=ON -DGRADUAL_BUILD_BENCH=ON -DGRADUAL_CCACHE=OFF \
    -DCMAKE_PREFIX_PATH="$here/vendor/usr" >"$dir/configure.log" 2>&1 ||
    { cat "$dir/configure.log" >&2
      fail "gpu-check: cmake could not configure build/gpu (no network for missing libraries? see ./dev vendor)"; }
  grep -E '^-- gradual:' "$dir/configure.log" >&2 || true
  compile gpu gradual-lab gradual-compare test_cuda test_op_table mixed_precision_from_scratch
  python3 -B "$here/bench/gpu_check.py" --build "$dir" --out "$out" --seconds "$seconds" --built-in $((SECONDS - start)) \
    $( ((quick)) && echo --quick) || status=$?
  say "gpu-check took $((SECONDS - start)) s"
  return $status
}
