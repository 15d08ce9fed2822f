#include "quantizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "../formats/accumulator.h"
#include "../formats/format_table.h"
#include "../ops/dispatch.h"
#include "../ops/ops.h"
#include "../support/multiversion.h"
#include "../support/parallel.h"
#include "../support/throwf.h"
#include "../tensor/device_recording.h"
#include "../tensor/memory.h"
#include "block_scales.h"
#include "gradient_estimator.h"
#include "one_pass.h"
#include "quantize_part.h"
#include "quantizer_call.h"
#include "quantizer_kernels.h"
#include "row_quantizer.h"
#include "tensor_rows.h"

namespace gradual::detail {
namespace {

// The axis along which elements are adjacent, for results that no axis changes.
int fastest_axis(const Tensor& x) {
  const auto* const found = std::find(x.strides().begin(), x.strides().end(), 1);
  return found == x.strides().end() ? -1 : static_cast<int>(found - x.strides().begin());
}

// of_chunk(values, n) of all chunks, which are T, merged into one result by merge(total, part).
template <class T, class Result, class F, class Merge>
Result total_of(const Tensor& of, const F& of_chunk, const Merge& merge) {
  const Rows x(of, fastest_axis(of));
  std::mutex mutex;
  Result total{};
  x.chunks(1, [&](std::int64_t first, std::int64_t n) {
    std::optional<Scratch> scratch;
    const T* values = x.load<T>(first, n, scratch);
    const Result mine = vectorized([=, &of_chunk] { return of_chunk(values, n); });
    const std::lock_guard lock(mutex);
    merge(total, mine);
  });
  return total;
}
template <class T> T amax_as(const Tensor& x) {
  return total_of<T, T>(
      x, [](const T* v, std::int64_t n) { return largest(v, n, T(0)); },
      [](T& total, T part) { total = larger_magnitude(part, total); });
}
double amax_of(const Tensor& x) { return x.dtype() == DType::f64 ? amax_as<double>(x) : amax_as<float>(x); }
template <class T> Range range_as(const Tensor& x) {
  return total_of<T, Range>(
      x,
      [](const T* v, std::int64_t n) {
        Range range;
        range.add(v, n);
        return range;
      },
      [](Range& total, const Range& part) { total.add(part); });
}
Range range_of(const Tensor& x) { return x.dtype() == DType::f64 ? range_as<double>(x) : range_as<float>(x); }

bool on_gpu(const Rows& x) { return x.x.device().is_cuda(); }

// ScaleGrid::whole of scales from an amax.
Tensor whole_scale(const Rows& x, const Tensor& amax, const ScaleSpec& spec) {
  Tensor scale = empty({2}, {.device = x.x.device()});
  device::whole_scale(amax, spec, scale);
  return scale;
}

// The amax of all, or x's if that is undefined.
double amax_or_own(const Rows& x, const Tensor& amax) { return amax.defined() ? amax.item<double>() : amax_of(x.x); }
Tensor amax_tensor_or_own(const Rows& x, const Tensor& amax) { return amax.defined() ? amax : absmax_tensor(x.x); }

// The scales of a tensor, by kind. Kinds of rows and blocks have theirs found in the pass.
void set_scales(const NoScale&, const Rows&, const QuantizeOptions&, const Tensor&, Grid&) {}
void set_scales(const FixedScale& kind, const Rows&, const QuantizeOptions&, const Tensor&, Grid& g) {
  g.one = inverted(static_cast<float>(kind.value));
}
void set_scales(const TensorScale&, const Rows& x, const QuantizeOptions&, const Tensor& amax, Grid& g) {
  if (on_gpu(x)) g.whole = whole_scale(x, amax_tensor_or_own(x, amax), g.spec);
  else g.one = current_scale(amax_or_own(x, amax), g.spec);
}
void set_scales(const TensorRange&, const Rows& x, const QuantizeOptions&, const Tensor&, Grid& g) {
  g.one = range_of(x.x).scale(g.spec);
}
void set_scales(const DelayedScale& kind, const Rows& x, const QuantizeOptions& o, const Tensor& amax, Grid& g) {
  if (!o.history)
    throw_error("quantize: delayed scaling needs the history of a tensor's amaxes (QuantizeOptions::history)");
  const bool stages = stages_amax(o.use);
  if (on_gpu(x)) {
    const Device device = x.x.device();
    g.whole = empty({2}, {.device = device});
    device::delayed_scale(o.history->on_device(device, kind.history), stages ? amax_tensor_or_own(x, amax) : Tensor(),
                          o.use, g.whole);
    o.history->is_staged = o.history->is_staged || stages;
    return;
  }
  o.history->on_host();
  if (keeps_scale(o.use)) o.history->used = o.history->scale;
  g.one = inverted(o.use == QuantizeFor::later_use ? o.history->used : o.history->scale);
  if (stages) o.history->stage(amax_or_own(x, amax));
}
void set_scales(const LearnedScale&, const Rows&, const QuantizeOptions& o, const Tensor&, Grid& g) {
  if (!o.history)
    throw_error("quantize: learned scaling needs the history that holds its scale (QuantizeOptions::history)");
  if (keeps_scale(o.use)) o.history->used = o.history->scale;
  g.one = inverted(o.use == QuantizeFor::later_use ? o.history->used : o.history->scale);
}
void set_tensor_scale(const Rows& x, const Tensor& amax, Grid& g) {
  if (on_gpu(x)) g.whole = whole_scale(x, amax_tensor_or_own(x, amax), g.spec);
  else set_global(g.spec, nvfp4_global(amax_or_own(x, amax), g.spec));
}
template <class Kind>
  requires(Kind::kUnit != ScaleUnit::tensor)
void set_scales(const Kind&, const Rows&, const QuantizeOptions&, const Tensor&, Grid&) {}

RoundingMode rounding_of(CodedRule rule) {
  if (rule == CodedRule::up) return RoundingMode::up;
  return rule == CodedRule::stochastic ? RoundingMode::stochastic : RoundingMode::nearest_even;
}

// Keeps the random numbers of scales apart from those of elements. It is added, since keys that others put onto a seed
// by XOR would cancel it.
constexpr std::uint64_t kScaleKey = 0x9e3779b97f4a7c15;

// The shape of the blocks.
template <class Kind> void set_blocks(const Kind& kind, const Rows& x, Grid& g) {
  g.block_rows = 1;
  g.block_cols = kind.block;
  g.levels = {kind.block, 0, 0};
  bool tiles = false;
  if constexpr (requires { kind.square; }) {
    tiles = kind.square;
    if (tiles) g.block_rows = kind.block;
  }
  if constexpr (requires { kind.part; }) {
    g.block_cols = kind.inner_part ? kind.inner_part : kind.part;
    g.levels = {kind.block, kind.part, kind.inner_part};
  }
  if constexpr (requires { kind.search(); }) g.search = kind.search();
  if constexpr (requires { kind.scale_format; }) g.scale_format = kind.scale_format;
  if constexpr (std::is_same_v<Kind, CodedBlocks> || std::is_same_v<Kind, Nvfp4Blocks>)
    g.scale_rounding = rounding_of(kind.rule);
  std::int64_t unit = kind.block;  // whole scales need the row in multiples of it
  if constexpr (requires { kind.group; }) {
    g.group = kind.group;
    unit = kind.group;
  }
  if constexpr (requires { kind.outer; }) {
    g.outer = kind.outer;
    unit = kind.outer;
  }
  if (!tiles && x.k % unit == 0) g.k = unit;
}

Grid make_grid(const Rows& x, const Quantizer& q, const QuantizeOptions& o, const PartOf& part) {
  Grid g;
  g.k = x.k;
  g.spec = scale_spec(q);
  g.quantizer = &q;
  g.scale_key = {o.key.seed + kScaleKey, o.key.stream};
  g.block_rows = std::max<std::int64_t>(1, x.rows);
  g.block_cols = std::max<std::int64_t>(1, x.k);
  std::visit(
      [&]<class Kind>(const Kind& kind) {
        g.fixed = Kind::kUnit == ScaleUnit::tensor;
        if constexpr (Kind::kUnit == ScaleUnit::row) g.block_rows = 1;
        if constexpr (Kind::kUnit == ScaleUnit::block) set_blocks(kind, x, g);
        if constexpr (std::is_same_v<Kind, Nvfp4Blocks> || std::is_same_v<Kind, EdenBlocks>)
          set_tensor_scale(x, part.amax, g);
        else set_scales(kind, x, o, part.amax, g);
      },
      q.scaling);
  return g;
}

// times_to_odd() by a power of two and its inverse, in f32: only results below 2^-126 or beyond f32 are inexact.
inline float power_to_odd(float x, float by, float inverse) {
  const float near = x * by;
  const float back = std::fabs(near * inverse);
  const float given = std::fabs(x);
  const auto too_far = static_cast<std::uint32_t>(back > given);
  const std::uint32_t inexact = too_far | static_cast<std::uint32_t>(back < given);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(near) - too_far) | inexact);
}
// Multiplies n elements, whole rows of the grid, by their scales. to_odd: rounds inexact products to odd. `from` may be
// `to`.
template <class T>
void multiply(const T* from, T* to, std::int64_t n, const Grid& g, std::span<const Scale> scales, bool to_odd) {
  vectorized([=, &g] {
    for_runs(n, g, [=](std::int64_t block, std::int64_t begin, std::int64_t end) {
      const float by = scales[static_cast<std::size_t>(block)].forward;
      const float inverse = scales[static_cast<std::size_t>(block)].inverse;
      if constexpr (std::is_same_v<T, float>) {
        if (to_odd && is_power(scales[static_cast<std::size_t>(block)])) {
#pragma omp simd
          for (std::int64_t i = begin; i < end; ++i) to[i] = power_to_odd(from[i], by, inverse);
          return;
        }
      }
      if (to_odd) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) to[i] = times_to_odd(from[i], by);
      } else {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) to[i] = from[i] * by;
      }
    });
  });
}
// Whether the product of a code's value and a block's scale under one of the tensor is exact in f32.
bool fits_f32(const Quantizer& q) {
  if (!has_two_levels(q.scaling)) return false;
  const Format scale = of_kind(
      q.scaling, kScaleE4m3,
      [](const auto& kind) requires requires { kind.scale_format; } { return kind.scale_format; });
  return !q.format.table && q.format.mantissa_bits + scale.mantissa_bits <= 22 &&
         q.format.min_positive() * scale.min_positive() >= 0x1p-126 && q.format.max() * scale.max() <= 0x1p126;
}
// Multiplies rounded elements by the inverse scales of their blocks and of the tensor. in_f32: fits_f32().
void unscale(float* values, std::int64_t n, const Grid& g, std::span<const Scale> scales, float of_tensor,
             bool in_f32) {
  vectorized([=, &g] {
    for_runs(n, g, [=](std::int64_t block, std::int64_t begin, std::int64_t end) {
      const float by = scales[static_cast<std::size_t>(block)].inverse;
      if (of_tensor == 1) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) values[i] = unscaled(values[i], by);
      } else if (in_f32) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) values[i] = unscaled(values[i] * by, of_tensor);
      } else {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) values[i] = unscaled(values[i], by, of_tensor);
      }
    });
  });
}

// Rounds n scaled elements: to values; under zero points to integers, with `whole` those of codes, else less the zero
// points.
template <class T>
void round_scaled(const Rounder& rounder, const T* from, float* to, std::int64_t n, std::int64_t first, CastStats stats,
                  const Grid& g, std::span<const Scale> scales, bool whole) {
  if constexpr (sizeof(T) == sizeof(float)) {
    rounder.round(from, to, n, first, stats);
  } else {
    const Scratch rounded(static_cast<std::size_t>(n) * sizeof(T));
    rounder.round(from, rounded.as<T>(), n, first, stats);
    std::copy_n(rounded.as<T>(), n, to);
  }
  if (!g.spec.zero_point) return;
  for_runs(n, g, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
    const float zero = scales[static_cast<std::size_t>(block)].zero;
    const float low = static_cast<float>(g.spec.least) - zero;
    const float high = static_cast<float>(g.spec.most) - zero;
    for (std::int64_t i = begin; i < end; ++i) to[i] = std::clamp(to[i], low, high) + (whole ? zero : 0);
  });
}

const Quantizer& checked(const Quantizer& q, const char* what, const Tensor& x) {
  check_valid(q);
  if (x.device().is_cuda() && cpu_only(q))
    throwf(
        "quantizer to {}: tables, zero points, parts, searched, learned and coded scales (but nvfp4's to nearest), and "
        "gradients that are not straight run on the CPU only",
        to_string(q.format));
  if (q.hadamard) throwf("{}: the Hadamard transform belongs to a product; apply hadamard() yourself", what);
  if (q.center) throwf("{}: center belongs to a product; subtract the mean yourself", what);
  return q;
}

// One call of a quantizer: its elements, scaled chunk by chunk.
struct ScaledChunks {
  const Quantizer& q;
  const QuantizeOptions& o;
  PartOf part;
  Rows x;
  Grid g;
  Rounder rounder{rounded_format(q), q.rounding, q.overflow, o.key};
  // Doubles, and scaled elements of which the rounder reads more than an f32 holds, are rounded as doubles.
  // Doubles stay doubles if nothing is scaled.
  bool doubles = x.x.dtype() == DType::f64;
  bool scaled = !is_any<NoScale>(q.scaling);
  bool exact = scaled && product_of(q.scaling) == ScaledProduct::exact;
  bool wide = doubles || (exact && !f32_suffices(rounder));
  bool stays_wide = doubles && !scaled;

  ScaledChunks(const char* what, const Tensor& t, int axis, const Quantizer& quantizer, const QuantizeOptions& options,
               const PartOf& of = {})
      : q(checked(quantizer, what, t)), o(options), part(of), x(t, axis, of.row_dims), g(make_grid(x, q, o, part)) {}

  // The scales of a chunk, and the largest magnitude under each.
  template <class T> BlockScales<T> scales_of(const T* source, std::int64_t first, std::int64_t n) const {
    if (!g.fixed) return find_scales(source, n, part.first_element + first, g);
    return {{g.one}, {vectorized([=] { return largest(source, n, T(0)); })}};
  }

  // Adds the exponents of scaled elements. False: an f32 does not tell those of the exact products.
  template <class T> bool add_exponents(const T* values, std::int64_t n, ExponentHistogram& total) const {
    if (sizeof(T) == sizeof(double) || !exact) {
      total.add(values, n);
      return true;
    }
    constexpr std::size_t kLargest = 254;  // also that of products beyond f32, which are rounded to odd
    ExponentHistogram mine;
    mine.add(values, n);
    if (mine.bins[kLargest] > 0) return false;
    total += mine;
    return true;
  }

  // One chunk of for_scaled().
  template <class T, class F, class Quick>
  void chunk(std::int64_t first, std::int64_t n, CastStats stats, const F& body, const Quick& quick) const {
    std::optional<Scratch> scratch;
    const T* source = x.load<T>(first, n, scratch);
    if (g.fixed && g.one.forward == 1) return body(first, n, source, std::span(&g.one, 1), stats);
    const BlockScales<T> found = scales_of(source, first, n);
    const std::span<const Scale> scales = found.scales;
    if (stats.exponents && !o.scaled_exponents) {
      stats.exponents->add(source, n);
      stats.exponents = nullptr;
    }
    if constexpr (sizeof(T) == sizeof(float))
      if (quick(first, n, source, found, stats)) return;
    if (sizeof(T) == sizeof(float) && wide) return chunk<double>(first, n, stats, body, quick);
    std::optional<Scratch> product;
    const bool in_place = scratch && !stats.exponents;
    if (!in_place) product.emplace(static_cast<std::size_t>(n) * sizeof(T));
    T* const values = (in_place ? *scratch : *product).template as<T>();
    const bool product_is_exact = sizeof(T) == sizeof(double) && !doubles;
    multiply(source, values, n, g, scales, exact && !product_is_exact);
    if (stats.exponents && !add_exponents(values, n, *stats.exponents))
      return chunk<double>(first, n, stats, body, quick);
    stats.exponents = nullptr;
    body(first, n, values, scales, stats);
  }

  // body(first, n, values, scales, stats) gets n elements, scaled but not yet rounded; `stats` is empty. `scratch` may
  // hold the source.
  template <class T, class F>
  void scaled_part(const T* source, std::optional<Scratch>& scratch, std::int64_t first, std::int64_t n,
                   const F& body) const {
    if (g.fixed && g.one.forward == 1) return body(first, n, source, std::span(&g.one, 1), CastStats{});
    const BlockScales<T> found = scales_of(source, first, n);
    const std::span<const Scale> scales = found.scales;
    if (!scratch) scratch.emplace(static_cast<std::size_t>(n) * sizeof(T));
    T* const values = scratch->as<T>();
    const bool product_is_exact = sizeof(T) == sizeof(double) && !doubles;
    multiply(source, values, n, g, scales, exact && !product_is_exact);
    body(first, n, values, scales, CastStats{});
  }
  // Rounds n scaled elements and, with `unscales`, multiplies them by the inverse scales: those of blocks, and with
  // `all` those of the tensor.
  template <class T>
  void round_part(const T* from, float* to, std::int64_t number, std::int64_t n, std::span<const Scale> scales,
                  CastStats stats, bool unscales, bool all) const {
    round_scaled(rounder, from, to, n, number, stats, g, scales, false);
    if (unscales && (!g.fixed || (all && g.one.inverse != 1)))
      unscale(to, n, g, scales, all ? g.spec.global_inverse : 1, fits_f32(q));
  }

  // The one pass: body(first, n, values, scales, stats) gets a chunk of the source, scaled but not yet rounded and
  // counted. Chunks are whole rows of blocks. If the grid is fixed, they are any range, and `scales` has one entry.
  // For f32 numbers, quick(first, n, source, found, stats) may do the rest of the work with the scales found; else it
  // returns false and has counted nothing. quick_products: also where scaled elements are rounded as doubles.
  template <class F, class Quick>
  void for_scaled(const F& body, const Quick& quick, bool whole_rows = false, bool quick_products = false) const {
    const bool one_scale = g.fixed && g.one.forward == 1;
    // searches and corrections of scales compute in the type of the source
    const bool as_doubles = wide && (!quick_products || doubles || one_scale || g.search || g.group > 0);
    std::mutex mutex;
    x.chunks(whole_rows ? g.block_rows * x.k
             : g.fixed  ? 1
                        : g.block_rows * g.k,
             [&](std::int64_t first, std::int64_t n) {
               CastCounts counts;
               std::optional<ExponentHistogram> exponents;
               if (o.stats.exponents) exponents.emplace();
               const CastStats mine{o.stats.counts ? &counts : nullptr, exponents ? &*exponents : nullptr};
               if (as_doubles) chunk<double>(first, n, mine, body, quick);
               else chunk<float>(first, n, mine, body, quick);
               if (!o.stats.counts && !exponents) return;
               const std::lock_guard lock(mutex);
               if (o.stats.counts) *o.stats.counts += counts;
               if (exponents) *o.stats.exponents += *exponents;
             });
  }
};

// And its results.
struct Call : ScaledChunks {
  using ScaledChunks::ScaledChunks;

  device::RoundingPass pass() const {
    device::RoundingPass pass;
    static_cast<ScaleGrid&>(pass) = g;
    pass.x = as_strided(x.x, x.sizes, x.strides, x.x.offset());
    pass.wide = wide;
    pass.rows = x.rows;
    pass.k = x.k;
    pass.rounder = rounder;
    pass.options = o;
    return pass;
  }

  // values() on the CPU: writes out, in the order [rows, k] or, if `places` is given, where the rows of out lie, and
  // unless row_scales is null the scales of rows.
  void write_values(bool all, float* row_scales, const Rows* places, const Tensor& out) const {
    const float of_tensor = all ? g.spec.global_inverse : 1;
    const bool unscales = !row_scales && (!g.fixed || (all && g.one.inverse != 1));
    const bool in_f32 = fits_f32(q);
    const Unscaling how = !unscales ? Unscaling::none : of_tensor == 1 ? Unscaling::block : Unscaling::block_tensor;
    const bool joins = !g.spec.zero_point && (how != Unscaling::block_tensor || in_f32);
    const OnePass one_pass(rounder, exact);
    // Calls f(to) for where the chunk's results go, and finishes them if it returns true.
    const auto written = [&](std::int64_t first, std::int64_t n, std::span<const Scale> scales, const auto& f) {
      std::optional<Scratch> rows;
      float* const to = places ? rows.emplace(static_cast<std::size_t>(n) * sizeof(float)).template as<float>()
                               : out.data<float>() + first;
      if (!f(to)) return false;
      if (row_scales) std::ranges::transform(scales, row_scales + first / x.k, &Scale::inverse);
      if (places) places->store(to, first, n, static_cast<float*>(out.raw()));
      return true;
    };
    for_scaled(
        [&]<class T>(std::int64_t first, std::int64_t n, const T* from, std::span<const Scale> scales,
                     CastStats stats) {
          const std::int64_t number = part.first_element + first;
          if (stays_wide) return rounder.round(from, out.data<T>() + first, n, number, stats);
          written(first, n, scales, [&](float* to) {
            round_part(from, to, number, n, scales, stats, !row_scales, all);
            return true;
          });
        },
        [&](std::int64_t first, std::int64_t n, const float* from, const BlockScales<float>& found, CastStats stats) {
          return joins && written(first, n, found.scales, [&](float* to) {
                   return one_pass.run(from, to, n, part.first_element + first, g, found.scales, found.most, how,
                                       stats);
                 });
        },
        places != nullptr, joins && one_pass.rounds_products());
  }

  // Memory of x's sizes in the layout that is asked for; undefined: the order [rows, k] serves.
  Tensor placed() const {
    if (!x.x.device().is_cpu() || stays_wide || !x.row_sizes.empty()) return {};
    if (part.layout == ValuesLayout::row_major && x.axis != x.x.dim() - 1) return empty(x.x.sizes());
    if (part.layout == ValuesLayout::as_given && !x.in_order && x.is_dense())
      return as_strided(empty({x.rows * x.k}), x.x.sizes(), x.x.strides(), 0);
    return {};
  }

  // The rounded values, multiplied by the inverse scales: always by those of blocks, with `all` also by those of the
  // tensor or of rows. Without `all`, those of rows are written to *row_scales.
  Tensor values(bool all, Tensor* row_scales) const {
    const Device device = x.x.device();
    Tensor out = placed();
    const std::optional<Rows> places = out.defined() ? std::optional<Rows>(std::in_place, out, x.axis) : std::nullopt;
    if (!places) out = empty({x.rows, x.k}, {.dtype = stays_wide ? DType::f64 : DType::f32, .device = device});
    const bool apart = unit_of(q.scaling) == ScaleUnit::row && !all;
    if (apart)
      *row_scales = x.k == 0 ? full({x.rows, 1}, 1, {.device = device}) : empty({x.rows, 1}, {.device = device});
    if (device.is_cuda()) {
      device::RoundingPass gpu = pass();
      gpu.values = out;
      gpu.unscale = g.fixed ? all && (g.whole.defined() || g.one.inverse != 1) : !apart;
      gpu.last = all && !g.fixed && g.whole.defined();
      if (apart) gpu.scales = *row_scales;
      device::round_scaled(gpu);
      return x.shaped_like(out);
    }
    write_values(all, apart ? row_scales->data<float>() : nullptr, places ? &*places : nullptr, out);
    return places ? out : x.shaped_like(out);
  }

  // quantizer_slopes().
  Tensor slopes() const {
    const GradientEstimator estimator(q);
    const Tensor out = empty({x.rows, x.k});
    const auto write = [&]<class T>(std::int64_t first, std::int64_t n, const T* from, std::span<const Scale> scales,
                                    const CastStats&) {
      float* const to = out.data<float>() + first;
      for_runs(n, g, [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
        const float zero = scales[static_cast<std::size_t>(block)].zero;
        estimator.slopes(from + begin, to + begin, end - begin, zero);
      });
    };
    for_scaled(write, [](auto&&...) { return false; });
    return x.shaped_like(out);
  }

  QuantizerCall::Circumstances circumstances(bool scale_apart) const {
    return {.factor = g.whole.defined() ? 0
                      : g.fixed         ? g.one.forward
                                        : 1,
            .scale_apart = scale_apart,
            .amax_of_more = part.amax.defined(),
            .first_element = part.first_element,
            .key = o.key};
  }

  // The format of QuantizedTensor::scales.
  Format scale_format() const {
    return of_kind(
        q.scaling, Format::ieee(8, 23),
        [](const auto& kind) requires requires { kind.codes(); } { return kind.codes(); });
  }
};

}  // namespace

Format rounded_format(const Quantizer& q) {
  if (!has_zero_points(q.scaling)) return q.format;
  return Format::fixed_point(std::bit_width(static_cast<unsigned>(q.format.max() - q.format.min())), 0);
}

}  // namespace gradual::detail

namespace gradual {

bool cpu_only(const Quantizer& q) {
  if (q.gradient != QuantizerGradient::straight) return true;
  return q.format.table || !of_kind(
                               q.scaling, true, [](const auto& kind) requires requires { kind.runs_on_gpus(); } {
                                 return kind.runs_on_gpus();
                               });
}

bool is_random(const Quantizer& q) {
  return q.rounding.mode == RoundingMode::stochastic || has_random_scales(q.scaling);
}

void check_valid(const Quantizer& q) {
  check_valid(q.format);
  in_context("quantizer to " + to_string(q.format), [&] {
    if (!q.format.has_zero && !is_any<NoScale>(q.scaling))
      throw_error("a format without zero holds scales; it cannot have a scale itself");
    check_valid(q.rounding);
    std::visit([&](const auto& kind) { kind.check(q.format); }, q.scaling);
    if (q.hadamard && std::ranges::find(kHadamardSizes, q.hadamard.size) == std::end(kHadamardSizes))
      throwf("a Hadamard transform of size {}; allowed are 16, 32, 64, 128 and 256", q.hadamard.size);
    if (q.signs == HadamardSigns::drawn && !q.hadamard) throw_error("signs are of a Hadamard transform; there is none");
    if (is_any<EdenBlocks>(q.scaling) && q.rounding.mode == RoundingMode::stochastic)
      throw_error("ms-eden has random scales; its elements are rounded another way than stochastic");
  });
}

void QuantizerCall::tell_observers() const {
  if (!chain().observe) return;
  const StageScope mask(chain().observe, nullptr);
  const StageScope exact(chain().results, nullptr);
  QuantizerCall told = *this;
  told.within = running_custom_op();
  for (Observer* observer : std::vector(ObserverScope::installed())) observer->quantized(told);
}

QuantizedTensor quantize(const Tensor& x, const Quantizer& q, const QuantizeOptions& o) {
  const detail::Call c("quantize", x, o.axis, q, o);
  const detail::Grid& g = c.g;
  const int bits = q.format.storage_bits();
  QuantizedTensor out;
  out.format = q.format;
  out.shape = x.sizes();
  out.axis = c.x.axis;
  out.block_rows = g.block_rows;
  out.block_cols = g.block_cols;
  out.codes = empty({packed_bytes(x.numel(), bits)}, {.dtype = DType::u8, .device = x.device()});
  out.scale_format = c.scale_format();
  const Shape sizes{(c.x.rows + g.block_rows - 1) / g.block_rows, (c.x.k + g.block_cols - 1) / g.block_cols};
  if (g.fixed && g.whole.defined()) out.scales = as_strided(g.whole, sizes, {1, 1}, 1);
  else if (g.fixed && !is_any<NoScale>(q.scaling)) out.scales = full(sizes, g.one.inverse, {.device = x.device()});
  else if (!g.fixed)
    out.scales =
        empty(sizes, {.dtype = code_bytes(out.scale_format) == 1 ? DType::u8 : DType::f32, .device = x.device()});
  if (!g.fixed && g.whole.defined()) out.global_scale = as_strided(g.whole, {}, {}, 1);
  else if (g.spec.global != 1) out.global_scale = scalar(g.spec.global_inverse);
  if (g.spec.zero_point) out.zero_points = full(sizes, g.one.zero);
  if (x.device().is_cuda()) {
    device::RoundingPass pass = c.pass();
    pass.codes = out.codes;
    if (!g.fixed) pass.scales = out.scales;
    device::round_scaled(pass);
  } else {
    auto* codes = out.codes.data<std::uint8_t>();
    const auto encode = [&](const Rounder& by, std::int64_t first, std::int64_t n, const auto* values,
                            CastStats stats) {
      if (bits >= 8) return by.encode(values, codes + first * bits / 8, n, first, stats);
      const Scratch loose(static_cast<std::size_t>(n));
      by.encode(values, loose.data(), n, first, stats);
      pack_codes(loose.as<std::uint8_t>(), n, bits, codes + first * bits / 8);
    };
    const Rounder scale_rounder{out.scale_format, {}, Overflow::ieee};
    c.for_scaled(
        [&](std::int64_t first, std::int64_t n, const auto* values, std::span<const detail::Scale> scales,
            CastStats stats) {
          if (!g.spec.zero_point) {
            encode(c.rounder, first, n, values, stats);
          } else {
            const Scratch whole(static_cast<std::size_t>(n) * sizeof(float));
            detail::round_scaled(c.rounder, values, whole.as<float>(), n, first, stats, g, scales, true);
            encode(Rounder{q.format, {}, q.overflow}, first, n, whole.as<const float>(), {});
          }
          if (g.fixed) return;
          std::vector<float> inverse;
          for (const detail::Scale& s : scales) inverse.push_back(s.inverse);
          const std::int64_t at = first / g.k / g.block_rows * ((g.k + g.block_cols - 1) / g.block_cols);
          scale_rounder.encode(inverse.data(), static_cast<char*>(out.scales.raw()) + at * code_bytes(out.scale_format),
                               static_cast<std::int64_t>(inverse.size()));
          if (g.spec.zero_point)
            std::ranges::transform(scales, out.zero_points.data<float>() + at, &detail::Scale::zero);
        },
        [](auto&&...) { return false; });
  }
  QuantizerCall{QuantizerCall::encode, x, out.codes, {}, &q, c.x.axis}.tell_observers();
  return out;
}

Tensor fake_quantize(const Tensor& x, const Quantizer& q, const QuantizeOptions& o) {
  const detail::Call c("fake_quantize", x, o.axis, q, o);
  Tensor y = c.values(true, nullptr);
  QuantizerCall{QuantizerCall::values, x, y, {}, &q, c.x.axis, c.circumstances(false)}.tell_observers();
  return y;
}

struct RowQuantizer::State {
  Quantizer quantizer;
  QuantizeOptions options;
  Tensor row;
  detail::Call call{"RowQuantizer", row, -1, quantizer, options};

  State(const Quantizer& q, std::int64_t length, RandomKey key)
      : quantizer(q), options{.key = key}, row(zeros({1, length})) {}
};

RowQuantizer::RowQuantizer(const Quantizer& quantizer, std::int64_t length, RandomKey key)
    : state_(std::make_shared<State>(quantizer, length, key)) {}

bool RowQuantizer::suits(const Quantizer& q) {
  const ScaleUnit unit = unit_of(q.scaling);
  if (q.hadamard || q.center) return false;
  if (unit == ScaleUnit::tensor) return is_any<NoScale, FixedScale>(q.scaling);
  return unit == ScaleUnit::row || !(has_two_levels(q.scaling) || has_tiles(q.scaling));
}

void RowQuantizer::round(float* values, std::int64_t n, std::int64_t first) const {
  const detail::Call& c = state_->call;
  const auto body = [&](std::int64_t number, std::int64_t count, const auto* from,
                        std::span<const detail::Scale> scales,
                        CastStats stats) { c.round_part(from, values, number, count, scales, stats, true, true); };
  std::optional<Scratch> scratch;
  if (!c.wide) return c.scaled_part(static_cast<const float*>(values), scratch, first, n, body);
  const auto* const wide = std::copy_n(values, n, scratch.emplace(n * sizeof(double)).as<double>()) - n;
  c.scaled_part(wide, scratch, first, n, body);
}

QuantizedOperand quantize_operand(const Tensor& x, const Quantizer& q, const QuantizeOptions& o) {
  return quantize_part(x, q, o, {});
}

QuantizedOperand quantize_part(const Tensor& x, const Quantizer& q, const QuantizeOptions& o, const PartOf& part) {
  if ((part.first_element || part.row_dims > 1) && x.device().is_cuda())
    throwf("quantize_part: element {} is the first of a part, with rows of {} dims; on GPUs it is 0, with one dim",
           part.first_element, part.row_dims);
  const bool matrix = part.row_dims > 1;
  const int axis = wrap_dim(o.axis, matrix ? 2 : x.dim(), "quantize");
  // random words: by axis
  const bool any = !matrix && per_tensor(q.scaling) && q.rounding.mode != RoundingMode::stochastic;
  const detail::Call c("quantize_operand", x, any && x.device().is_cpu() ? detail::fastest_axis(x) : axis, q, o, part);
  QuantizedOperand out;
  out.values = c.values(false, &out.scale);
  if (out.scale.defined()) {
    Shape sizes = c.x.result_sizes();
    sizes[c.x.axis] = 1;
    out.scale = out.scale.reshape(sizes);
  } else if (c.g.whole.defined()) {
    out.scale = as_strided(c.g.whole, {}, {}, 1);
  } else if (const float inverse = c.g.fixed ? c.g.one.inverse : c.g.spec.global_inverse; inverse != 1) {
    out.scale = full({}, inverse, {.device = x.device()});
  }
  const bool shown_as_matrix = matrix && chain().observe;
  Tensor shown = x;
  if (shown_as_matrix) shown = x.contiguous().reshape({c.x.rows, c.x.k});
  if (shown_as_matrix && axis == 0) shown = shown.t();
  QuantizerCall{QuantizerCall::values, shown, out.values, out.scale, &q, axis, c.circumstances(true)}.tell_observers();
  return out;
}

Tensor quantizer_slopes(const Tensor& x, const Quantizer& q, const QuantizeOptions& o) {
  return slopes_of_part(x, q, o, {});
}

Tensor slopes_of_part(const Tensor& x, const Quantizer& q, const QuantizeOptions& o, const PartOf& part) {
  QuantizeOptions again = o;
  again.stats = {};
  if (o.use == QuantizeFor::one_use) again.use = QuantizeFor::evaluation;  // the same scale, which is not staged
  else if (keeps_scale(o.use)) again.use = QuantizeFor::later_use;
  const int axis = wrap_dim(o.axis, x.dim(), "quantize");
  return detail::Call("quantizer_slopes", x, axis, q, again, part).slopes();
}

Tensor hadamard(const Tensor& x, const std::vector<bool>& negated) {
  const AccumulatorScope exact(std::nullopt);  // a recipe's accumulator does not apply to the transform
  const auto n = std::ssize(negated);
  if (std::ranges::find(kHadamardSizes, n) == std::end(kHadamardSizes))
    throwf("hadamard: of size {}; allowed are 16, 32, 64, 128 and 256", n);
  if (x.dim() < 1 || x.sizes().back() % n != 0)
    throwf("hadamard{}: {}: the last dim must be a multiple of {}", n, to_string(x.sizes()), n);
  const auto size = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  std::vector<float> values;
  for (std::size_t i = 0; i < negated.size(); ++i)
    for (std::size_t j = 0; j < negated.size(); ++j)
      values.push_back((std::popcount(i & j) + negated[i]) % 2 != 0 ? -size : size);
  const Tensor h = empty({n, n}, {.device = x.device()});
  if (x.device().is_cuda()) device::upload(h.raw(), x.device(), values.data(), values.size() * sizeof(float));
  else std::ranges::copy(values, h.data<float>());
  return matmul(x.reshape({-1, n}), h).reshape(x.sizes());
}

Tensor hadamard16(const Tensor& x, std::uint16_t signs) {
  std::vector<bool> negated;
  for (int i = 0; i < 16; ++i) negated.push_back((signs >> i & 1) != 0);
  return hadamard(x, negated);
}

double absmax(const Tensor& x) {
  return x.device().is_cuda() ? detail::moved(absmax_tensor(x), Device::cpu()).item<double>() : detail::amax_of(x);
}

Tensor absmax_tensor(const Tensor& x) {
  const detail::Rows rows(x, -1);
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  if (x.device().is_cpu()) return full({}, detail::amax_of(x), {.dtype = dtype});
  Tensor most = empty({}, {.dtype = dtype, .device = x.device()});
  device::amax(x, most);
  return most;
}

}  // namespace gradual
