// For tests that run on a GPU, or on its emulator.
#pragma once

#include <doctest/doctest.h>

#include <gradual/amp/recipe.h>
#include <gradual/core/tensor/tensor.h>
#include <gradual/cuda/cuda.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace gradual::test {

inline constexpr Device kGpu = Device::cuda();

// False, with the reason, where there is no GPU: a failure where GRADUAL_TEST_NEEDS_GPU is set.
inline bool have_gpu() {
  if (cuda::available()) return true;
  if (std::getenv("GRADUAL_TEST_NEEDS_GPU")) {
    FAIL_CHECK("no GPU: " << cuda::why_not());
    return false;
  }
  MESSAGE("skipped: " << cuda::why_not());
  return false;
}

// Whether GPUs take all quantizers of the recipe.
inline bool runs_on_gpu(const amp::Recipe& recipe) {
  return !recipe.quantization || std::ranges::none_of(amp::kQuantizerFields, [&](const amp::QuantizerField& f) {
    const auto& q = (*recipe.quantization).*f.quantizer;
    return q && cpu_only(*q);
  });
}

// Recipes of every mode, every kind of scaling and every state that a GPU keeps. The emulator takes minutes for all
// recipes; tests/cuda/training_test.cpp trains with each of them.
inline constexpr std::array kRecipesForGpu = {
    "fp32",        "tf32",        "amp-fp16",     "amp-bf16", "fp16-pure", "bf16-pure", "fp16-master",   "bf16-master",
    "fp8-delayed", "fp8-rowwise", "fp8-block128", "mxfp8",    "nvfp4",     "msamp-o2",  "mxfp4-centered"};

inline std::vector<double> numbers(const Tensor& t) { return t.to(Device::cpu()).to_vector<double>(); }
// Normal numbers on the CPU, the same for the same seed.
inline Tensor drawn(const Shape& sizes, std::uint64_t seed, DType dtype = DType::f32) {
  Generator g(seed);
  return randn(sizes, {}, g).to(dtype);
}

// Of tensors on any device.
inline bool same_numbers(const Tensor& a, const Tensor& b) {
  const Tensor x = a.detach().to(Device::cpu()).contiguous();
  const Tensor y = b.detach().to(Device::cpu()).contiguous();
  return x.dtype() == y.dtype() && x.sizes() == y.sizes() &&
         std::equal(static_cast<char*>(x.raw()), static_cast<char*>(x.raw()) + x.nbytes(), static_cast<char*>(y.raw()));
}

// The kernels and library calls that f() starts, by name.
template <class F> std::vector<std::string> kernels_of(const F& f) {
  device::Watch watch(kGpu);
  f();
  return watch.stop().kernels;
}
// Whether one of them has `part` in its name.
inline bool any_has(const std::vector<std::string>& names, const std::string& part) {
  return std::any_of(names.begin(), names.end(), [&](const auto& n) { return n.find(part) != std::string::npos; });
}

// The emulated cuDNN refuses these calls (tests/doubles/cudnn.h) while it lives; the real one takes no notice.
class CudnnRefuses : Pinned {
 public:
  explicit CudnnRefuses(const char* what) { setenv("GRADUAL_EMULATED_CUDNN_REFUSES", what, 1); }
  ~CudnnRefuses() { unsetenv("GRADUAL_EMULATED_CUDNN_REFUSES"); }
};

}  // namespace gradual::test
