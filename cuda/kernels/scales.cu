// Amaxes, the scales derived from them, and their history, all in GPU memory: the host does not wait. The arithmetic is
// that of core/quantize/quantizer_kernels.h.
#include <algorithm>

#include "../../core/quantize/amax_history.h"
#include "../../core/quantize/quantizer_kernels.h"
#include "block.h"
#include "elements.h"

namespace gradual::cuda {
namespace {

using detail::Scale;

constexpr std::int64_t kBlocks = 2048;

struct LargerBits {
  template <class U> __device__ U operator()(U a, U b) const { return a > b ? a : b; }
};

// T: float or double, the dtype of `most`.
template <class T> struct LargestMagnitude {
  using Bits = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
  Geometry<1> x;  // in the order of its memory
  std::int64_t blocks;
  Bits* most;
  __device__ void operator()(const Block& block) const {
    constexpr Bits kMagnitude = ~(Bits{1} << (8 * sizeof(Bits) - 1));
    Bits mine = 0;
    for (std::int64_t i = block.index * block.threads + block.thread; i < x.numel; i += blocks * block.threads) {
      std::int64_t at[1] = {i};
      if (!x.operand[0].linear) x.locate(i, at);
      const auto value = load_element<T>(x.operand[0].dtype, x.operand[0].data, at[0]);
      const Bits size = std::bit_cast<Bits>(value) & kMagnitude;
      mine = size > mine ? size : mine;
    }
    mine = reduce_block(block, mine, Bits{0}, LargerBits{});
    if (block.thread == 0) atomicMax(most, mine);
  }
};

__device__ inline void put(const Scale& scale, float* to) {
  to[0] = scale.forward;
  to[1] = scale.inverse;
}

// An amax in a GPU's memory, f32 or f64.
struct Amax {
  const void* at = nullptr;  // null: none
  bool wide = false;
  __device__ double get() const { return wide ? *static_cast<const double*>(at) : *static_cast<const float*>(at); }
};

struct WholeScale {
  Amax amax;
  detail::ScaleSpec spec;
  float* to;
  __device__ void operator()(std::int64_t) const {
    put(spec.two_levels ? nvfp4_global(amax.get(), spec) : current_scale(amax.get(), spec), to);
  }
};

struct ScaleFromHistory {
  DeviceAmaxHistory* history;
  Amax amax;  // none: nothing is staged
  QuantizeFor use;
  float* to;
  __device__ void operator()(std::int64_t) const {
    if (keeps_scale(use)) history->used = history->scale;
    put(detail::inverted(use == QuantizeFor::later_use ? history->used : history->scale), to);
    if (amax.at) history->staged = detail::larger_magnitude(detail::history_amax(amax.get()), history->staged);
  }
};

// Runs as one block.
struct AdvanceAmax {
  DeviceAmaxHistory* history;
  detail::ScaleSpec spec;
  __device__ void operator()(const Block& block) const {
    auto* const ring = reinterpret_cast<float*>(history + 1);
    const std::int64_t count = history->count + 1;
    const std::int64_t kept = count < spec.history ? count : spec.history;
    if (block.thread == 0) ring[(count - 1) % spec.history] = history->staged;
    __syncthreads();
    std::uint32_t most = 0;
    for (std::int64_t i = block.thread; i < kept; i += block.threads) {
      const auto bits = std::bit_cast<std::uint32_t>(ring[i]);
      most = bits > most ? bits : most;
    }
    most = reduce_block(block, most, 0u, LargerBits{});
    if (block.thread != 0) return;
    history->scale =
        delayed_scale(spec.most_recent ? history->staged : std::bit_cast<float>(most), history->scale, spec);
    history->staged = 0;
    history->count = count;
  }
};

// Index i copies 4 bytes, or the fewer that are left.
struct CopyUnless {
  const std::int64_t* skipped;
  std::int64_t bytes;
  char* to;
  const char* from;
  __device__ void operator()(std::int64_t i) const {
    if (skipped && *skipped != 0) return;
    if (4 * i + 4 <= bytes) {
      reinterpret_cast<std::uint32_t*>(to)[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
    } else {
      for (std::int64_t b = 4 * i; b < bytes; ++b) to[b] = from[b];
    }
  }
};

float* floats(const Tensor& t) { return static_cast<float*>(t.raw()); }

Amax amax_in(const Tensor& t) { return t.defined() ? Amax{t.raw(), t.dtype() == DType::f64} : Amax{}; }

template <class T> void start_amax(const Tensor& x, const Tensor& to) {
  const Tensor* const operands[] = {&x};
  const std::int64_t blocks = std::clamp<std::int64_t>((x.numel() + kThreads - 1) / kThreads, 1, kBlocks);
  using Largest = LargestMagnitude<T>;
  for_blocks(blocks, Largest{make_geometry(x.sizes(), operands, false), blocks,
                             static_cast<typename Largest::Bits*>(to.raw())});
}

}  // namespace
}  // namespace gradual::cuda

namespace gradual::device {

using namespace cuda;

void amax(const Tensor& x, const Tensor& to) {
  select(x.device());
  clear(to.raw(), to.nbytes());
  if (x.numel() == 0) return;
  if (to.dtype() == DType::f64) start_amax<double>(x, to);
  else start_amax<float>(x, to);
}

void whole_scale(const Tensor& amax, const detail::ScaleSpec& spec, const Tensor& to) {
  select(to.device());
  for_each(1, WholeScale{amax_in(amax), spec, floats(to)});
}

void delayed_scale(DeviceAmaxHistory* history, const Tensor& amax, QuantizeFor use, const Tensor& to) {
  select(to.device());
  for_each(1, ScaleFromHistory{history, amax_in(amax), use, floats(to)});
}

void copy_unless(const std::int64_t* skipped, const Tensor& to, const Tensor& from) {
  select(to.device());
  const auto bytes = static_cast<std::int64_t>(to.nbytes());
  for_each((bytes + 3) / 4, CopyUnless{skipped, bytes, static_cast<char*>(to.raw()), static_cast<char*>(from.raw())});
}

void advance_amax(DeviceAmaxHistory* history, Device device, const detail::ScaleSpec& spec) {
  select(device);
  for_blocks(1, AdvanceAmax{history, spec});
}

}  // namespace gradual::device
