#!/usr/bin/env bash
# nccl.sh FOLDER: compiles NCCL's backend, links a program that calls it, and runs that. Headers and libraries are those
# of the CUDA toolkit (CUDA_HOME, or /usr/local/cuda), else of Python's packages, which pip puts into FOLDER. Without a
# GPU the program must get as far as CUDA's error that names none. Status 75: neither source has NCCL.
set -euo pipefail

folder=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p "$folder"
cuda=${CUDA_HOME:-/usr/local/cuda}
if [[ -e $cuda/include/nccl.h ]] && compgen -G "$cuda/lib64/libnccl.so*" >/dev/null; then
  include=("-I$cuda/include") lib=("$cuda/lib64")
else
  packages=$folder/packages/nvidia
  [[ -d $packages/nccl && -d $packages/cuda_runtime ]] ||
    python3 -m pip install --quiet --no-deps --target "$folder/packages" nvidia-nccl-cu12 nvidia-cuda-runtime-cu12 \
      nvidia-cuda-nvcc-cu12 || exit 75
  include=() lib=("$packages"/nccl/lib "$packages"/cuda_runtime/lib)
  for part in "$packages"/*/include; do include+=("-I$part"); done
fi
cat >"$folder/main.cpp" <<'EOF'
#include <cstdio>

#include "core/support/error.h"
#include "dist/communicator.h"

int main() {
  using namespace gradual;
  const auto one = dist::single();
  try {
    const auto ranks = dist::nccl(*one, Device::cuda(0));
    float sent = 1.5f, came = 0;
    ranks->all_to_all(&sent, sizeof sent, &came);
    std::printf("a GPU: %s carried %g\n", ranks->backend().data(), static_cast<double>(came));
    return came == sent ? 0 : 1;
  } catch (const Error& e) { return std::printf("no GPU: %s\n", e.what()), 0; }
}
EOF
link=()
for d in "${lib[@]}"; do
  for library in "$d"/libnccl.so* "$d"/libcudart.so*; do [[ -e $library ]] && link+=("$library"); done
  link+=("-Wl,-rpath,$d")
done
"${CXX:-g++}" -std=c++20 -Wall -Wextra -Werror -DGRADUAL_HAVE_NCCL -I. -isystem build/release/include "${include[@]/#-I/-isystem}" \
  "$folder/main.cpp" dist/{nccl,communicator,mpi}.cpp core/files/input_file.cpp \
  -ffunction-sections -Wl,--gc-sections -lfmt -lz "${link[@]}" -o "$folder/nccl"
[[ $(ldd "$folder/nccl") == *libnccl* ]] || { echo "the program does not load NCCL"; exit 1; }
said=$("$folder/nccl")
echo "$said"
grep -qE '^(a GPU: nccl|no GPU: NCCL( reports|: CUDA reports))' <<<"$said"
