// Quantizers' passes over tensors: scale, round, count; twin of core/quantizer.cpp's loops and of core/rounding.cpp. The
// arithmetic is that of core/rounding_kernels.h and core/quantizer_kernels.h, so bits and counts are the CPU's.
#include "../core/quantizer_kernels.h"

#include <algorithm>
#include <utility>

#include "../core/philox.h"
#include "block.h"
#include "elements.h"
#include "nan.h"
#include "random.h"

namespace gradual::cuda {
namespace {

using detail::LoopCounts;
using detail::Scale;
using Spec = detail::RoundingSpec<std::uint32_t>;

constexpr std::int64_t kBlocks = 2048;  // of a pass, at most: all that 132 multiprocessors hold
constexpr int kBins = 256, kSums = 6;

__device__ inline std::uint32_t magnitude_of(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }

template <bool codes, bool count, int... loops>
__device__ std::uint32_t round_by(int loop, std::uint32_t bits, std::uint32_t word, const Spec& s, LoopCounts& counts,
                                  std::integer_sequence<int, loops...>) {
  std::uint32_t rounded = 0;
  (void)((loop == loops && (rounded = detail::round_bits<loops, codes, count, false>(bits, word, s, counts), true)) ||
         ...);
  return rounded;
}

// Where a pass counts; null: it does not.
struct Tallies {
  unsigned long long* sums = nullptr;  // LoopCounts' fields in their order
  unsigned long long* bins = nullptr;  // of an ExponentHistogram
};

// What a thread reads before its first element.
struct Known {
  RandomKey key;
  Scale whole;  // of the tensor
};

// What happens to one element once its scale is known.
template <bool kCodes, bool kCount> struct RoundElement {
  Geometry<1> x;  // in the order [rows, k]
  Spec spec;
  int loop;
  bool stochastic, unscale, last, scaled_exponents;
  DeviceKey key;
  const std::int64_t* steps;  // QuantizeOptions
  Scale whole;
  const float* whole_there;  // not null: `whole` stands there
  float* values;
  char* codes;
  int code_bytes;
  Tallies tallies;

  __device__ float source(std::int64_t i) const {
    std::int64_t at[1] = {i};
    if (!x.operand[0].linear) x.locate(i, at);
    return load_element<float>(x.operand[0].dtype, x.operand[0].data, at[0]);
  }
  __device__ Known known() const {
    RandomKey drawn = key.get();
    if (steps) drawn.stream += static_cast<std::uint64_t>(*steps) << 25;
    return {drawn, whole_there ? Scale{whole_there[0], whole_there[1]} : whole};
  }
  __device__ void operator()(std::int64_t i, float from, const Scale& scale, const Known& known, LoopCounts& counts,
                             unsigned* bins) const {
    const float scaled = scale.forward == 1 ? from : times(from, scale.forward);
    if (kCount && tallies.bins) {
      const std::uint32_t size = magnitude_of(scaled_exponents ? scaled : from);
      if (size != 0) atomicAdd(bins + (size >> 23), 1u);
    }
    std::uint32_t word = 0;
    if (stochastic)
      word = philox_word(known.key.seed, known.key.stream, static_cast<std::uint64_t>(i)) >> (32 - spec.random_bits);
    const std::uint32_t rounded =
        round_by<kCodes, kCount>(loop, std::bit_cast<std::uint32_t>(scaled), word, spec, counts,
                                 std::make_integer_sequence<int, detail::kRoundingLoops>{});
    if constexpr (kCodes) {
      if (code_bytes == 1) codes[i] = static_cast<char>(rounded);
      else if (code_bytes == 2) reinterpret_cast<std::uint16_t*>(codes)[i] = static_cast<std::uint16_t>(rounded);
      else reinterpret_cast<std::uint32_t*>(codes)[i] = rounded;
    } else {
      auto value = std::bit_cast<float>(rounded);
      if (unscale && scale.inverse != 1) value = times(value, scale.inverse);
      if (last && known.whole.inverse != 1) value = times(value, known.whole.inverse);
      values[i] = value;
    }
  }

  // Where a block counts: its bins, then its sums, all zero.
  __device__ unsigned* begin(const Block& block) const {
    __shared__ unsigned bins[kBins + kSums];
    if constexpr (kCount) {
      for (int b = block.thread; b < kBins + kSums; b += block.threads) bins[b] = 0;
      __syncthreads();
    }
    return bins;
  }
  __device__ void end(const Block& block, const LoopCounts& c, unsigned* bins) const {
    if constexpr (kCount) {
      const std::uint32_t mine[kSums] = {c.zeros, c.to_zero, c.below_normal, c.beyond, c.not_finite, c.nan};
      for (int s = 0; s < kSums; ++s)
        if (mine[s] != 0) atomicAdd(bins + kBins + s, mine[s]);
      __syncthreads();
      for (int b = block.thread; b < kBins + kSums; b += block.threads) {
        if (bins[b] == 0) continue;
        if (b >= kBins) atomicAdd(tallies.sums + b - kBins, static_cast<unsigned long long>(bins[b]));
        else if (tallies.bins) atomicAdd(tallies.bins + b, static_cast<unsigned long long>(bins[b]));
      }
    }
  }
};

// One scale for all.
template <bool kCodes, bool kCount> struct RoundAll {
  RoundElement<kCodes, kCount> round;
  std::int64_t n, blocks;
  __device__ void operator()(const Block& block) const {
    LoopCounts counts;
    unsigned* const bins = round.begin(block);
    const Known known = round.known();
    for (std::int64_t i = block.index * block.threads + block.thread; i < n; i += blocks * block.threads)
      round(i, round.source(i), known.whole, known, counts, bins);
    round.end(block, counts, bins);
  }
};

struct LargerBits {
  __device__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a > b ? a : b; }
};

// A scale for each row, block or tile, which a warp looks at twice: for its amax, and to round.
template <bool kCodes, bool kCount> struct RoundTiles {
  RoundElement<kCodes, kCount> round;
  detail::ScaleSpec rule;
  Spec scale_codes;  // nvfp4
  std::int64_t rows, k, tile_rows, tile_cols, across, tiles, blocks;
  float* scales;
  std::uint8_t* coded_scales;

  __device__ void operator()(const Block& block) const {
    constexpr int kLanes = static_cast<int>(kWarp);
    LoopCounts counts;
    unsigned* const bins = round.begin(block);
    const Known known = round.known();
    detail::ScaleSpec spec = rule;
    spec.global = known.whole.forward;
    const int lane = block.thread % kLanes, warps = block.threads / kLanes;
    for (std::int64_t t = block.index * warps + block.thread / kLanes; t < tiles; t += blocks * warps) {
      const std::int64_t row = t / across * tile_rows, col = t % across * tile_cols;
      const std::int64_t high = rows - row < tile_rows ? rows - row : tile_rows;
      const std::int64_t wide = k - col < tile_cols ? k - col : tile_cols;
      const std::int64_t first = row * k + col;
      const auto element = [&](std::int64_t e) { return first + (high == 1 ? e : e / wide * k + e % wide); };
      std::uint32_t most = 0;
      for (std::int64_t e = lane; e < high * wide; e += kLanes) {
        const std::uint32_t size = magnitude_of(round.source(element(e)));
        most = size > most ? size : most;
      }
      const Scale scale = scale_of(std::bit_cast<float>(reduce_warp(most, LargerBits{})), spec);
      if (lane == 0) put_scale(t, scale.inverse);
      for (std::int64_t e = lane; e < high * wide; e += kLanes) {
        const std::int64_t i = element(e);
        round(i, round.source(i), scale, known, counts, bins);
      }
    }
    round.end(block, counts, bins);
  }
  __device__ void put_scale(std::int64_t t, float inverse) const {
    const auto bits = std::bit_cast<std::uint32_t>(inverse);
    if (scales) scales[t] = inverse;
    if (!coded_scales) return;
    LoopCounts unused;
    coded_scales[t] = static_cast<std::uint8_t>(
        rule.kind != ScalingKind::nvfp4 ? (bits << 1) >> 24  // e8m0: the exponent; NaN's is ones
                                        : detail::round_bits<0, true, false, false>(bits, 0, scale_codes, unused));
  }
};

// Codes of 4 or 6 bits, one a byte, to packed ones: as many as fill whole bytes at a time.
struct PackCodes {
  const std::uint8_t* loose;
  std::uint8_t* packed;
  std::int64_t n, bytes;
  int bits, group;
  __device__ void operator()(std::int64_t i) const {
    std::uint32_t word = 0;
    for (std::int64_t c = 0; c < group && i * group + c < n; ++c)
      word |= static_cast<std::uint32_t>(loose[i * group + c]) << (c * bits);
    const int here = group * bits / 8;
    for (std::int64_t b = 0; b < here && i * here + b < bytes; ++b)
      packed[i * here + b] = static_cast<std::uint8_t>(word >> (8 * b));
  }
};

Geometry<1> geometry_of(const Tensor& x) {
  const Tensor* const operands[] = {&x};
  return make_geometry(x.sizes(), operands, true);
}

std::int64_t blocks_for(std::int64_t threads) {
  return std::clamp<std::int64_t>((threads + kThreads - 1) / kThreads, 1, kBlocks);
}

template <bool kCodes, bool kCount>
void start_pass(const device::RoundingPass& p, char* codes, const Tallies& tallies) {
  RoundElement<kCodes, kCount> round{};
  round.x = geometry_of(p.x);
  round.spec = detail::rounding_spec(p.rounder, kCodes);
  round.loop = detail::rounding_loop(p.rounder, round.spec);
  round.stochastic = p.rounder.rounding.mode == RoundingMode::stochastic;
  round.unscale = p.unscale, round.last = p.last, round.scaled_exponents = p.scaled_exponents;
  round.steps = p.steps;
  round.key = p.steps ? DeviceKey{p.rounder.key} : device_key(p.rounder.key);
  round.whole = p.one;
  if (p.whole.defined()) round.whole_there = static_cast<const float*>(p.whole.raw());
  round.values = kCodes ? nullptr : static_cast<float*>(p.values.raw());
  round.codes = codes, round.code_bytes = code_bytes(p.rounder.format);
  round.tallies = tallies;
  const std::int64_t n = p.rows * p.k;
  if (p.fixed) {
    const std::int64_t blocks = blocks_for(n);
    return for_blocks(blocks, kThreads, RoundAll<kCodes, kCount>{round, n, blocks});
  }
  RoundTiles<kCodes, kCount> pass{};
  pass.round = round, pass.rule = p.spec;
  pass.rows = p.rows, pass.k = p.k;
  pass.tile_rows = p.block_rows, pass.tile_cols = p.block_cols;
  pass.across = (p.k + p.block_cols - 1) / p.block_cols;
  pass.tiles = (p.rows + p.block_rows - 1) / p.block_rows * pass.across;
  pass.blocks = blocks_for(pass.tiles * kWarp);
  if (p.scales.defined() && p.scales.dtype() == DType::f32) pass.scales = static_cast<float*>(p.scales.raw());
  else if (p.scales.defined()) pass.coded_scales = static_cast<std::uint8_t*>(p.scales.raw());
  if (p.spec.kind == ScalingKind::nvfp4)
    pass.scale_codes = detail::rounding_spec(Rounder{format("e4m3fn"), {}, Overflow::ieee}, true);
  for_blocks(pass.blocks, kThreads, pass);
}

// Adds what a pass counted, for which the device is waited.
void add_tallies(const Workspace& memory, std::int64_t n, CastStats stats) {
  unsigned long long read[kSums + kBins];
  device::copy(read, Device::cpu(), memory.as<void>(), Device::cuda(current_device()), sizeof read);
  const auto& [zeros, to_zero, below_normal, beyond, not_finite, nan] =
      reinterpret_cast<const unsigned long long(&)[kSums]>(read);
  if (stats.counts)
    *stats.counts += {static_cast<std::uint64_t>(n), zeros, to_zero - zeros, below_normal - to_zero,
                      beyond - not_finite,           nan,   not_finite - nan};
  if (stats.exponents)
    for (int b = 0; b < kBins; ++b) stats.exponents->bins[static_cast<std::size_t>(b)] += read[kSums + b];
}

}  // namespace
}  // namespace gradual::cuda

namespace gradual::device {

using namespace cuda;

void round_scaled(const RoundingPass& p) {
  const std::int64_t n = p.rows * p.k;
  if (n == 0) return;
  select(p.x.device());
  const bool tallied = p.stats.counts || p.stats.exponents;
  const Workspace tally((kSums + kBins) * (tallied ? sizeof(unsigned long long) : 0));
  Tallies tallies;
  if (tallied) {
    check(cudaMemsetAsync(tally.as<void>(), 0, (kSums + kBins) * sizeof(unsigned long long), current_stream()),
          "cudaMemsetAsync");
    tallies.sums = tally.as<unsigned long long>();
    if (p.stats.exponents) tallies.bins = tallies.sums + kSums;
  }
  const int bits = p.rounder.format.storage_bits();
  const bool coded = p.codes.defined(), packed = coded && bits < 8;
  const Workspace loose(packed ? static_cast<std::size_t>(n) : 0);
  char* const codes = packed ? loose.as<char>() : coded ? static_cast<char*>(p.codes.raw()) : nullptr;
  if (coded) (tallied ? start_pass<true, true> : start_pass<true, false>)(p, codes, tallies);
  else (tallied ? start_pass<false, true> : start_pass<false, false>)(p, codes, tallies);
  if (packed) {
    const int group = bits == 4 ? 2 : 4;
    for_each((n + group - 1) / group,
             PackCodes{reinterpret_cast<const std::uint8_t*>(codes), static_cast<std::uint8_t*>(p.codes.raw()), n,
                       packed_bytes(n, bits), bits, group});
  }
  if (tallied) add_tallies(tally, n, p.stats);
}

}  // namespace gradual::device
