// The loss scale in GPU memory, and upload of numbers without waiting.
#include "../../core/kernels/loss_scale.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "../../core/support/error.h"
#include "../../core/tensor/device_recording.h"
#include "../runtime/launch.h"

namespace gradual::cuda {
namespace {

constexpr std::size_t kMostOptimizers = 64;

struct AdvanceScale {
  DeviceLossScale* state;
  LossScaleOptions options;
  const std::int64_t* found[kMostOptimizers];
  int count;
  double given;
  __device__ void operator()(std::int64_t) const {
    bool overflow = false;
    for (int k = 0; k < count; ++k) overflow = overflow || found[k][0] != 0;
    LossScale now = state->now;
    now.advance(options, overflow, given);
    if (now.scale != state->now.scale) {
      state->history[state->changes % DeviceLossScale::kKept] = {now.updates, static_cast<double>(now.scale)};
      ++state->changes;
    }
    state->now = now;
    state->scale = now.scale;
    state->inverse = now.inverse();
  }
};

constexpr std::size_t kWords = 64;  // words that one launch stores
struct StoreWords {
  std::uint64_t* to;
  std::int64_t bytes;
  std::uint64_t words[kWords];
  __device__ void operator()(std::int64_t i) const {
    if (8 * i + 8 <= bytes) {
      to[i] = words[i];
    } else {
      for (std::int64_t b = 8 * i; b < bytes; ++b)
        reinterpret_cast<char*>(to)[b] = static_cast<char>(words[i] >> (8 * (b - 8 * i)));
    }
  }
};

}  // namespace
}  // namespace gradual::cuda

namespace gradual::device {

void advance_scale(DeviceLossScale* state, Device device, const LossScaleOptions& options,
                   std::span<const std::int64_t* const> found, double given) {
  if (found.size() > cuda::kMostOptimizers)
    throw_error("GradScaler: " + std::to_string(found.size()) + " optimizers in one iteration; " +
                std::to_string(cuda::kMostOptimizers) + " are allowed");
  select(device);
  cuda::AdvanceScale advance{state, options, {}, static_cast<int>(found.size()), given};
  std::copy(found.begin(), found.end(), advance.found);
  cuda::for_each(1, advance);
}

void upload(void* to, Device device, const void* from, std::size_t bytes) {
  select(device);
  constexpr std::size_t kBytes = cuda::kWords * sizeof(std::uint64_t);
  for (std::size_t begin = 0; begin < bytes; begin += kBytes) {
    const std::size_t n = std::min(kBytes, bytes - begin);
    cuda::StoreWords store{
        reinterpret_cast<std::uint64_t*>(static_cast<char*>(to) + begin), static_cast<std::int64_t>(n), {}};
    std::memcpy(store.words, static_cast<const char*>(from) + begin, n);
    cuda::for_each(static_cast<std::int64_t>((n + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t)), store);
  }
}

}  // namespace gradual::device
