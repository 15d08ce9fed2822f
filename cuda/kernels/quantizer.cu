// Quantizers' passes over tensors: scale, round, count. Counterpart of the loops in core/quantize/quantizer.cpp and
// core/formats/rounding.cpp. The arithmetic is that of core/formats/rounding_kernels.h and
// core/quantize/quantizer_kernels.h, so bits and counts are the CPU's.
#include "../../core/quantize/quantizer_kernels.h"

#include <algorithm>
#include <type_traits>

#include "../../core/support/philox.h"
#include "../runtime/random.h"
#include "block.h"
#include "elements.h"
#include "multiply.h"

namespace gradual::cuda {
namespace {

using detail::LoopCounts;
using detail::Scale;

constexpr std::int64_t kBlocks = 2048;  // at most in a pass: as many as 132 multiprocessors hold
constexpr int kBins = 256;
constexpr int kSums = 6;

__device__ inline std::uint32_t magnitude_of(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }
__device__ inline unsigned long long magnitude_of(double x) {
  return std::bit_cast<unsigned long long>(x) & ~(1ull << 63);
}

// The bin of an ExponentHistogram that counts a number; -1 for none.
__device__ inline int bin_of(float x) {
  const std::uint32_t size = magnitude_of(x);
  return size == 0 ? -1 : static_cast<int>(size >> 23);
}
__device__ inline int bin_of(double x) {
  const std::uint64_t size = std::bit_cast<std::uint64_t>(x) << 1;
  const int exponent = static_cast<int>(size >> 53) - 1023 + 127;
  return size == 0 ? -1 : exponent < 0 ? 0 : exponent > 255 ? 255 : exponent;
}

// Rounds bits to a format with a zero.
template <bool codes, bool count, class U> struct ByFormat {
  using Bits = U;
  detail::RoundingSpec<U> spec;
  int loop;
  explicit ByFormat(const Rounder& r)
      : spec(detail::rounding_spec<U>(r, codes)), loop(detail::rounding_loop(r, spec)) {}
  __device__ U operator()(U bits, std::uint32_t word, LoopCounts& counts) const {
    return detail::round_by<codes, count>(loop, detail::take_source<count>(bits, spec, counts), word, spec, counts);
  }
};
// Rounds bits to a format of powers of two.
template <bool codes, class U> struct ByPowers {
  using Bits = U;
  detail::PowerSpec spec;
  explicit ByPowers(const Rounder& r) : spec(detail::power_spec(r)) {}
  __device__ U operator()(U bits, std::uint32_t word, LoopCounts& counts) const {
    using Value = typename detail::SourceBits<U>::Value;
    const std::uint32_t code = detail::round_to_power(std::bit_cast<Value>(bits), word, spec, counts);
    if constexpr (codes) return code;
    else return std::bit_cast<U>(static_cast<Value>(detail::power_of(code, spec)));
  }
};

// The counters of a pass; null: no counts.
struct Tallies {
  unsigned long long* sums = nullptr;  // LoopCounts' fields in their order
  unsigned long long* bins = nullptr;  // of an ExponentHistogram
};

// Read by each thread before its first element.
struct Known {
  RandomKey key;
  Scale whole;  // of the tensor
};

Geometry<1> geometry_of(const Tensor& x) {
  const Tensor* const operands[] = {&x};
  return make_geometry(x.sizes(), operands, true);
}

// Rounds one element when its scale is known. By: one of the above.
template <bool kCodes, bool kCount, class By> struct RoundElement {
  using Bits = typename By::Bits;
  using Value = typename detail::SourceBits<Bits>::Value;
  Geometry<1> x;  // in the order [rows, k]
  By by;
  int random_bits;  // 0: rounding is not stochastic
  bool unscale, last, scaled_exponents, exact;
  DeviceKey key;
  const std::int64_t* steps;  // QuantizeOptions
  Scale whole;
  const float* whole_there;  // not null: holds `whole`
  Value* values;
  float* narrow;  // not null: the output for values instead
  char* codes;
  int code_bytes;
  Tallies tallies;

  RoundElement(const device::RoundingPass& p, char* to, const Tallies& counted)
      : x(geometry_of(p.x)),
        by(p.rounder),
        random_bits(p.rounder.rounding.mode == RoundingMode::stochastic ? p.rounder.rounding.random_bits : 0),
        unscale(p.unscale),
        last(p.last),
        scaled_exponents(p.options.scaled_exponents),
        exact(p.spec.product == ScaledProduct::exact),
        key(p.options.steps ? DeviceKey{p.rounder.key} : device_key(p.rounder.key)),
        steps(p.options.steps),
        whole(p.one),
        whole_there(p.whole.defined() ? static_cast<const float*>(p.whole.raw()) : nullptr),
        values(kCodes ? nullptr : static_cast<Value*>(p.values.raw())),
        narrow(kCodes || p.values.dtype() == DType::f64 ? nullptr : static_cast<float*>(p.values.raw())),
        codes(to),
        code_bytes(gradual::code_bytes(p.rounder.format)),
        tallies(counted) {}

  __device__ Value source(std::int64_t i) const {
    std::int64_t at[1] = {i};
    if (!x.operand[0].linear) x.locate(i, at);
    return load_element<Value>(x.operand[0].dtype, x.operand[0].data, at[0]);
  }
  __device__ Known known() const {
    RandomKey drawn = key.get();
    if (steps) drawn.stream += static_cast<std::uint64_t>(*steps) << 25;
    return {drawn, whole_there ? Scale{whole_there[0], whole_there[1]} : whole};
  }
  __device__ void operator()(std::int64_t i, Value from, const Scale& scale, const Known& known, LoopCounts& counts,
                             unsigned* bins) const {
    Value scaled = from;
    if (scale.forward != 1) scaled = exact ? times_to_odd(from, scale.forward) : times(from, scale.forward);
    if (kCount && tallies.bins) {
      const int bin = bin_of(scaled_exponents ? scaled : from);
      if (bin >= 0) atomicAdd(bins + bin, 1u);
    }
    std::uint32_t word = 0;
    if (random_bits != 0)
      word = philox_word(known.key.seed, known.key.stream, static_cast<std::uint64_t>(i)) >> (32 - random_bits);
    const Bits rounded = by(std::bit_cast<Bits>(scaled), word, counts);
    if constexpr (kCodes) {
      if (code_bytes == 1) codes[i] = static_cast<char>(rounded);
      else if (code_bytes == 2) reinterpret_cast<std::uint16_t*>(codes)[i] = static_cast<std::uint16_t>(rounded);
      else reinterpret_cast<std::uint32_t*>(codes)[i] = static_cast<std::uint32_t>(rounded);
    } else {
      const auto value = std::bit_cast<Value>(rounded);
      if (!narrow) {
        values[i] = value;
        return;
      }
      const float by = unscale ? scale.inverse : 1;
      const float of_tensor = last ? known.whole.inverse : 1;
      const auto result = static_cast<float>(value);
      narrow[i] = by == 1 && of_tensor == 1 ? result : unscaled(result, by, of_tensor);
    }
  }

  // The counters of a block: bins, then sums, all zero.
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

// One scale for the tensor.
template <class Round> struct RoundAll {
  Round round;
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
  template <class U> __device__ U operator()(U a, U b) const { return a > b ? a : b; }
};

// One scale for each row, block or tile. A warp reads it twice: for the amax, and to round.
template <class Round> struct RoundTiles {
  Round round;
  detail::ScaleSpec rule;
  detail::RoundingSpec<std::uint32_t> scale_codes;  // nvfp4
  std::int64_t rows;
  std::int64_t k;
  std::int64_t tile_rows;
  std::int64_t tile_cols;
  std::int64_t across = 1;
  std::int64_t tiles = 1;
  std::int64_t blocks = 1;
  float* scales = nullptr;
  std::uint8_t* coded_scales = nullptr;

  __device__ void operator()(const Block& block) const {
    constexpr int kLanes = static_cast<int>(kWarp);
    LoopCounts counts;
    unsigned* const bins = round.begin(block);
    const Known known = round.known();
    detail::ScaleSpec spec = rule;
    set_global(spec, known.whole);
    const int lane = block.thread % kLanes;
    const int warps = block.threads / kLanes;
    for (std::int64_t t = block.index * warps + block.thread / kLanes; t < tiles; t += blocks * warps) {
      const std::int64_t row = t / across * tile_rows;
      const std::int64_t col = t % across * tile_cols;
      const std::int64_t high = rows - row < tile_rows ? rows - row : tile_rows;
      const std::int64_t wide = k - col < tile_cols ? k - col : tile_cols;
      const std::int64_t first = row * k + col;
      const auto element = [&](std::int64_t e) { return first + (high == 1 ? e : e / wide * k + e % wide); };
      using Value = typename Round::Value;
      auto most = magnitude_of(Value{0});
      for (std::int64_t e = lane; e < high * wide; e += kLanes) {
        const auto size = magnitude_of(round.source(element(e)));
        most = size > most ? size : most;
      }
      const Scale scale = scale_of(std::bit_cast<Value>(reduce_warp(most, LargerBits{})), spec);
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
        !rule.two_levels ? (bits << 1) >> 24  // e8m0: the exponent; all ones for NaN
                         : detail::round_bits<0, true, false, false>(bits, 0, scale_codes, unused));
  }
};

// Packs codes of 4 or 6 bits, given one per byte: as many at a time as fill whole bytes.
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

std::int64_t blocks_for(std::int64_t threads) {
  return std::clamp<std::int64_t>((threads + kThreads - 1) / kThreads, 1, kBlocks);
}

template <class Round> void start_all(const Round& round, std::int64_t n) {
  const std::int64_t blocks = blocks_for(n);
  for_blocks(blocks, RoundAll<Round>{round, n, blocks});
}

template <class Round> void start_tiles(const Round& round, const device::RoundingPass& p) {
  RoundTiles<Round> pass{round, p.spec, {}, p.rows, p.k, p.block_rows, p.block_cols};
  pass.across = (p.k + p.block_cols - 1) / p.block_cols;
  pass.tiles = (p.rows + p.block_rows - 1) / p.block_rows * pass.across;
  pass.blocks = blocks_for(pass.tiles * kWarp);
  if (p.scales.defined() && p.scales.dtype() == DType::f32) pass.scales = static_cast<float*>(p.scales.raw());
  else if (p.scales.defined()) pass.coded_scales = static_cast<std::uint8_t*>(p.scales.raw());
  if (p.spec.two_levels)
    pass.scale_codes = detail::rounding_spec<std::uint32_t>({format("e4m3fn"), {}, Overflow::ieee}, true);
  for_blocks(pass.blocks, pass);
}

// Powers of two are never scaled: check_valid(Quantizer) ensures it.
template <bool kCodes, bool kCount>
void start_pass(const device::RoundingPass& p, char* codes, const Tallies& tallies) {
  const std::int64_t n = p.rows * p.k;
  const bool wide = p.wide;
  const auto all = [&]<class By>(std::type_identity<By>) {
    start_all(RoundElement<kCodes, kCount, By>(p, codes, tallies), n);
  };
  using Floats = ByFormat<kCodes, kCount, std::uint32_t>;
  using Doubles = ByFormat<kCodes, kCount, std::uint64_t>;
  if (!p.rounder.format.has_zero && wide) all(std::type_identity<ByPowers<kCodes, std::uint64_t>>());
  else if (!p.rounder.format.has_zero) all(std::type_identity<ByPowers<kCodes, std::uint32_t>>());
  else if (wide && p.fixed) all(std::type_identity<Doubles>());
  else if (p.fixed) all(std::type_identity<Floats>());
  else if (wide) start_tiles(RoundElement<kCodes, kCount, Doubles>(p, codes, tallies), p);
  else start_tiles(RoundElement<kCodes, kCount, Floats>(p, codes, tallies), p);
}

// Waits for the device and adds the counts of a pass.
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
  const bool tallied = p.options.stats.counts || p.options.stats.exponents;
  const Workspace tally((kSums + kBins) * (tallied ? sizeof(unsigned long long) : 0));
  Tallies tallies;
  if (tallied) {
    clear(tally.as<void>(), (kSums + kBins) * sizeof(unsigned long long));
    tallies.sums = tally.as<unsigned long long>();
    if (p.options.stats.exponents) tallies.bins = tallies.sums + kSums;
  }
  const int bits = p.rounder.format.storage_bits();
  const bool coded = p.codes.defined();
  const bool packed = coded && bits < 8;
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
  if (tallied) add_tallies(tally, n, p.options.stats);
}

}  // namespace gradual::device
