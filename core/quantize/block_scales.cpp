#include "block_scales.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <variant>

#include "../support/multiversion.h"

namespace gradual::detail {
namespace {

// The squared error of a block (tile) under a scale. The block has rows of `rounded`'s width, g.k apart, from x on.
template <class T> double error_of(const T* x, std::int64_t rows, const Grid& g, Scale scale, std::vector<T>& rounded) {
  const Rounder nearest{g.quantizer->format, {}, g.quantizer->overflow};
  const auto width = static_cast<std::int64_t>(rounded.size());
  const bool exact = g.spec.product == ScaledProduct::exact;
  double sum = 0;
  for (; rows > 0; --rows, x += g.k) {
    for (std::int64_t i = 0; i < width; ++i)
      rounded[static_cast<std::size_t>(i)] = exact ? times_to_odd(x[i], scale.forward) : x[i] * scale.forward;
    nearest.round(rounded.data(), rounded.data(), width);
    for (std::int64_t i = 0; i < width; ++i) {
      const auto back =
          static_cast<double>(rounded[static_cast<std::size_t>(i)]) * scale.inverse * g.spec.global_inverse;
      sum += (static_cast<double>(x[i]) - back) * (static_cast<double>(x[i]) - back);
    }
  }
  return sum;
}

// The scales of one row's innermost parts, from their amaxes. The block's scale takes its amax to 2^levels times the
// largest value; a part doubles it if its amax is beyond what the parts in it can still double.
template <class T> void part_scales(const T* most, std::int64_t parts, const Grid& g, std::vector<Scale>& scales) {
  const int levels = g.levels[2] ? 2 : 1;
  const std::int64_t in_block = g.levels[0] / g.block_cols;
  const std::int64_t in_part = g.levels[1] / g.block_cols;
  const auto amax_of = [&](std::int64_t from, std::int64_t count) {
    return largest(most + from, std::min(count, parts - from), T(0));
  };
  ScaleSpec base = g.spec;
  base.most *= 1 << levels;
  base.emax += levels;
  Scale block;
  for (std::int64_t i = 0; i < parts; ++i) {
    if (i % in_block == 0) block = scale_of(amax_of(i, in_block), base);
    const double part = levels == 1 ? most[i] : amax_of(i / in_part * in_part, in_part);
    float times = part * block.forward >= static_cast<float>(1 << levels) * power(g.spec.emax) ? 2 : 1;
    const double inner = most[i];
    if (levels == 2 && inner * block.forward >= 2 * times * power(g.spec.emax)) times *= 2;
    scales.push_back({block.forward / times, block.inverse * times});
  }
}

// The scales and zero points of n elements in so many blocks.
template <class T>
std::vector<Scale> range_scales(const T* values, std::int64_t n, const Grid& g, std::int64_t blocks) {
  std::vector<Range> ranges(static_cast<std::size_t>(blocks));
  for_runs(n, g, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
    ranges[static_cast<std::size_t>(block)].add(values + begin, end - begin);
  });
  std::vector<Scale> scales;
  scales.reserve(ranges.size());
  for (const Range& r : ranges) scales.push_back(r.scale(g.spec));
  return scales;
}

// Scales that are rounded up or at random, from the amaxes of the blocks, of which the first is the tensor's block
// `first`. Those of amaxes that are not finite are as to nearest.
template <class T> std::vector<Scale> directed_scales(const std::vector<T>& most, std::int64_t first, const Grid& g) {
  std::vector<double> wanted;
  for (const T amax : most) wanted.push_back(nvfp4_wanted(amax, g.spec));
  const Rounder rounder{g.scale_format, {g.scale_rounding}, Overflow::saturate, g.scale_key};
  rounder.round(wanted.data(), wanted.data(), std::ssize(wanted), first);
  std::vector<Scale> scales;
  for (std::size_t i = 0; i < most.size(); ++i)
    scales.push_back(most[i] - most[i] == 0 ? stored_scale(static_cast<float>(wanted[i]), g.spec)
                                            : scale_of(most[i], g.spec));
  return scales;
}

// Double blocks: the scales of one row's blocks from their amaxes, times those of the outer blocks.
template <class T> void double_scales(const T* most, std::int64_t cols, const Grid& g, std::vector<Scale>& scales) {
  const std::int64_t in_outer = g.outer / g.block_cols;
  for (std::int64_t begin = 0; begin < cols; begin += in_outer) {
    const std::int64_t end = std::min(begin + in_outer, cols);
    ScaleSpec spec = g.spec;
    set_global(spec, nvfp4_global(largest(most + begin, end - begin, T(0)), spec));
    for (std::int64_t i = begin; i < end; ++i) {
      Scale scale = scale_of(most[i], spec);
      scale.inverse = unscaled(scale.inverse, spec.global_inverse);
      scales.push_back(scale);
    }
  }
}

// MS-EDEN: multiplies the inverse scales of each group by <x, x> / <x, Q(x)> and rounds them at random. The first scale
// is that of the tensor's block `first`.
template <class T>
void correct_scales(const T* values, std::int64_t n, std::int64_t first, const Grid& g, std::vector<Scale>& scales) {
  std::vector<T> rounded(static_cast<std::size_t>(n));
  for_runs(n, g, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
    const float by = scales[static_cast<std::size_t>(block)].forward;
    for (std::int64_t i = begin; i < end; ++i) rounded[static_cast<std::size_t>(i)] = times_to_odd(values[i], by);
  });
  Rounder{g.quantizer->format, g.quantizer->rounding, g.quantizer->overflow}.round(rounded.data(), rounded.data(), n);
  const std::int64_t cols = (g.k + g.block_cols - 1) / g.block_cols;
  const std::int64_t in_group = g.group / g.block_cols;
  std::vector<double> own(scales.size(), 0);      // <x, x> of a block
  std::vector<double> product(scales.size(), 0);  // <x, Q(x)>
  for_runs(n, g, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
    const auto b = static_cast<std::size_t>(block);
    for (std::int64_t i = begin; i < end; ++i) {
      const auto x = static_cast<double>(values[i]);
      own[b] += x * x;
      product[b] += x * rounded[static_cast<std::size_t>(i)] * scales[b].inverse * g.spec.global_inverse;
    }
  });
  std::vector<double> wanted;
  for (std::int64_t block = 0; block < std::ssize(scales); ++block) {
    const std::int64_t begin = block - block % cols % in_group;
    const std::int64_t end = std::min(begin + in_group, block / cols * cols + cols);
    const double all = std::accumulate(own.begin() + begin, own.begin() + end, 0.0);
    const double kept = std::accumulate(product.begin() + begin, product.begin() + end, 0.0);
    const double factor = std::isfinite(all / kept) ? all / kept : 1;
    wanted.push_back(scales[static_cast<std::size_t>(block)].inverse * factor);
  }
  const Rounder by_chance{g.scale_format, {RoundingMode::stochastic}, Overflow::saturate, g.scale_key};
  by_chance.round(wanted.data(), wanted.data(), std::ssize(wanted), first);
  for (std::size_t b = 0; b < scales.size(); ++b) scales[b].inverse = static_cast<float>(wanted[b]);
}

// scale_of() for scales that are powers of two by floor and rceil, from the bits of a normal amax. The oracles agree on
// scales above the least one.
Scale power_scale_of(float amax, const ScaleSpec& spec) {
  constexpr std::uint32_t kMantissa = 0x7fffff;
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  const auto exponent = static_cast<int>(bits >> 23);
  if (exponent == 0 || exponent == 255 || exponent <= spec.emax) return scale_of(amax, spec);
  const bool up = spec.rule == ScaleRule::rceil &&
                  (bits & kMantissa) > (std::bit_cast<std::uint32_t>(static_cast<float>(spec.most)) & kMantissa);
  return power_scale(exponent - 127 - spec.emax + (up ? 1 : 0));
}
bool has_power_scales(const ScaleSpec& s) {
  return s.form == ScaleForm::power &&
         (s.rule == ScaleRule::floor || (s.rule == ScaleRule::rceil && static_cast<float>(s.most) == s.most));
}

// Whether these are numbers of f32: those of f32 sources that are rounded as doubles are.
template <class T> bool are_floats(const std::vector<T>& values) {
  bool all = true;
  if constexpr (sizeof(T) > sizeof(float))
    for (const T v : values) all = all && static_cast<T>(static_cast<float>(v)) == v;
  return all;
}

// scale_of() for coded scales to nearest: the numbers that are stored are rounded together.
bool has_coded_scales(const ScaleSpec& s) {
  return s.form == ScaleForm::coded && s.oracle == ScaleOracle::transformer_engine &&
         s.product == ScaledProduct::exact && s.global > 0 && s.global <= FLT_MAX;
}
template <class T> std::vector<Scale> coded_scales(const std::vector<T>& most, const ScaleSpec& spec) {
  constexpr T kMost = std::numeric_limits<T>::max();
  std::vector<double> wanted(most.size());
  std::vector<double> stored(most.size());
  const auto n = std::ssize(most);
  vectorized([=, from = most.data(), to = wanted.data(), by = static_cast<double>(spec.global), part = spec.most] {
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i] * by / part;  // the products of two f32 are exact
  });
  for (std::int64_t at = 0; at < n; at += kRoundingBlock)
    round_block(static_cast<int>(RoundingMode::nearest_even), spec.stored, wanted.data() + at, nullptr,
                stored.data() + at, nullptr, 0, std::min(kRoundingBlock, n - at), nullptr);
  std::vector<Scale> scales;
  scales.reserve(most.size());
  for (std::size_t i = 0; i < most.size(); ++i)
    scales.push_back(most[i] <= kMost ? stored_scale(static_cast<float>(stored[i]), spec) : scale_of(most[i], spec));
  return scales;
}

// The largest magnitudes of the blocks of n elements, whole rows of the grid. most: zeros at first.
template <std::int64_t kWidth, class T>
[[gnu::always_inline]] inline void block_amaxes_of(const T* values, std::int64_t n, const Grid& g, T* most) {
  for_runs(n, g, [=](std::int64_t block, std::int64_t begin, std::int64_t end) {
    most[block] = largest(values + begin, kWidth ? kWidth : end - begin, most[block]);
  });
}
template <class T> void block_amaxes(const T* values, std::int64_t n, const Grid& g, T* most) {
  const std::int64_t width = g.k % g.block_cols == 0 ? g.block_cols : 0;
  vectorized([=, &g] {
    if (width == 16) block_amaxes_of<16>(values, n, g, most);
    else if (width == 32) block_amaxes_of<32>(values, n, g, most);
    else block_amaxes_of<0>(values, n, g, most);
  });
}

// Of several scales of each block the first with the least error.
template <class T>
std::vector<Scale> searched_scales(const T* values, std::int64_t rows, const std::vector<T>& most, const Grid& g) {
  const std::int64_t cols = (g.k + g.block_cols - 1) / g.block_cols;
  std::vector<Scale> scales;
  std::vector<T> rounded;
  for (std::int64_t i = 0; i < std::ssize(most); ++i) {
    const std::int64_t row = i / cols * g.block_rows;
    const std::int64_t col = i % cols * g.block_cols;
    rounded.resize(static_cast<std::size_t>(std::min(g.block_cols, g.k - col)));
    const std::vector<Scale> tried = g.search(most[static_cast<std::size_t>(i)], g.spec);
    Scale& best = scales.emplace_back(tried[0]);
    double least = std::numeric_limits<double>::infinity();
    for (const Scale& scale : tried)
      if (const double error =
              error_of(values + row * g.k + col, std::min(g.block_rows, rows - row), g, scale, rounded);
          error < least) {
        least = error;
        best = scale;
      }
  }
  return scales;
}

}  // namespace

ScaleSpec scale_spec(const Quantizer& q) {
  ScaleSpec spec;
  std::visit([&spec](const auto& kind) { kind.set(spec); }, q.scaling);
  spec.product = product_of(q.scaling);
  const bool directed = q.rounding.mode != RoundingMode::nearest_even &&
                        q.rounding.mode != RoundingMode::nearest_away && q.rounding.mode != RoundingMode::toward_zero;
  // The scale's own rounding may exceed half a step of formats as long as f32.
  const bool goes_up = directed || (spec.product == ScaledProduct::exact && q.format.mantissa_bits >= 22);
  spec.fits = goes_up && (q.overflow == Overflow::ieee || q.overflow == Overflow::ml_dtypes);
  spec.most = q.format.max();
  spec.emax = q.format.max_exponent();
  spec.mantissa_bits = q.format.mantissa_bits;
  spec.least = q.format.min();
  return spec;
}

Scale Range::scale(const ScaleSpec& s) const {
  const auto narrow_low = static_cast<float>(low);
  const auto narrow_high = static_cast<float>(high);
  const bool narrow = narrow_low == low && narrow_high == high;
  const double range = narrow ? narrow_high - narrow_low : high - low;
  if (!(range <= FLT_MAX)) return {};
  const float scale = std::max(static_cast<float>(range / (s.most - s.least)), FLT_EPSILON);
  const double steps = narrow ? narrow_low / scale : low / scale;
  const double zero = std::clamp(s.least - std::nearbyint(steps), s.least, s.most);
  return {1 / scale, scale, static_cast<float>(zero)};
}

bool is_power(const Scale& s) {
  return (std::bit_cast<std::uint32_t>(s.forward) & 0x7fffff) == 0 && s.forward > 0 && s.forward * s.inverse == 1;
}

template <class T> BlockScales<T> find_scales(const T* values, std::int64_t n, std::int64_t first, const Grid& g) {
  const std::int64_t rows = n / g.k;
  const std::int64_t cols = (g.k + g.block_cols - 1) / g.block_cols;
  const std::int64_t tiles = (rows + g.block_rows - 1) / g.block_rows;
  if (g.spec.zero_point) return {range_scales(values, n, g, tiles * cols), {}};
  const std::int64_t first_block = first / g.k / g.block_rows * cols;
  BlockScales<T> found{{}, std::vector<T>(static_cast<std::size_t>(tiles * cols), T(0))};
  block_amaxes(values, n, g, found.most.data());
  const std::vector<T>& most = found.most;
  std::vector<Scale>& scales = found.scales;
  scales.reserve(most.size());
  if (g.levels[1]) {
    for (std::int64_t r = 0; r < rows; ++r) part_scales(most.data() + r * cols, cols, g, scales);
  } else if (g.outer > 0) {
    for (std::int64_t r = 0; r < rows; ++r) double_scales(most.data() + r * cols, cols, g, scales);
  } else if (g.search) {
    scales = searched_scales(values, rows, most, g);
  } else if (g.scale_rounding != RoundingMode::nearest_even) {
    scales = directed_scales(most, first_block, g);
  } else if (has_power_scales(g.spec) && are_floats(most)) {
    scales.resize(most.size());
    for (std::size_t i = 0; i < most.size(); ++i) scales[i] = power_scale_of(static_cast<float>(most[i]), g.spec);
  } else if (has_coded_scales(g.spec) && are_floats(most)) {
    scales = coded_scales(most, g.spec);
  } else {
    for (const T m : most) scales.push_back(scale_of(m, g.spec));
  }
  if (g.group > 0) correct_scales(values, n, first_block, g, scales);
  return found;
}

template BlockScales<float> find_scales(const float*, std::int64_t, std::int64_t, const Grid&);
template BlockScales<double> find_scales(const double*, std::int64_t, std::int64_t, const Grid&);

}  // namespace gradual::detail
