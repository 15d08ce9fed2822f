#include "convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <tuple>

#include "../support/multiversion.h"
#include "convert_kernels.h"
#include "rounding.h"

namespace gradual {

namespace {

// Elements in a buffer on the stack: small enough for the first-level cache.
constexpr std::int64_t kBlock = 1024;

// Calls body(first, count) for every block of n elements.
template <class F> void for_blocks(std::int64_t n, F&& body) {
  for (std::int64_t first = 0; first < n; first += kBlock) body(first, std::min(kBlock, n - first));
}

// To an integer, or to bool or f64 (which loses nothing).
template <class To, class From> void count_wide(const From* in, std::int64_t n, CastCounts& counts) {
  counts.elements += static_cast<std::uint64_t>(n);
  for (std::int64_t i = 0; i < n; ++i) {
    const From value = in[i];
    counts.zeros += value == 0;
    if constexpr (std::floating_point<From>) {
      counts.nan += std::isnan(value);
      counts.inf += std::isinf(value);
      if (!std::isfinite(value)) continue;
      if constexpr (std::same_as<To, double>)
        counts.subnormal += std::fpclassify(static_cast<double>(value)) == FP_SUBNORMAL;
      if constexpr (std::integral<To>) {
        const From truncated = std::trunc(value);
        counts.underflow += truncated == 0 && value != 0;
        counts.overflow += truncated >= kEnd<To, From> || truncated < static_cast<From>(std::numeric_limits<To>::min());
      }
    } else if constexpr (std::integral<To>) {
      counts.overflow += static_cast<From>(saturate<To>(value)) != value;
    }
  }
}

// To a float of at most 32 bits, by the bits of n numbers, at most kBlock, and of what was stored of them.
template <class To, class From> CastCounts count_bits(const From* in, const To* out, std::int64_t n, const Format& f) {
  using Bits = std::conditional_t<sizeof(From) == 4, std::uint32_t, std::uint64_t>;
  constexpr auto kInf = static_cast<Bits>(sizeof(From) == 4 ? 0x7f800000 : 0x7ff0000000000000);
  const std::tuple all(in, out, static_cast<std::uint64_t>(n), f.sign_bit() - 1, 1u << f.mantissa_bits, f.max_code());
  return vectorized([&all] {  // a closure wider than a register would be copied through memory
    const auto [from, to, count, magnitudes, normal, most] = all;
    std::uint32_t zeros = 0;
    std::uint32_t to_zero = 0;
    std::uint32_t below = 0;
    std::uint32_t beyond = 0;
    std::uint32_t not_finite = 0;
    std::uint32_t nan = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      Bits m = from[i] != 0;
      if constexpr (std::floating_point<From>) m = std::bit_cast<Bits>(from[i]) << 1 >> 1;
      std::uint32_t stored = magnitudes;
      if constexpr (Narrow<To>) stored &= to[i].bits;
      else stored &= std::bit_cast<std::uint32_t>(to[i]);
      zeros += m == 0;
      not_finite += m >= kInf;
      nan += m > kInf;
      to_zero += stored == 0;
      beyond += stored > most;
      below += stored < normal;
    }
    return CastCounts{count, zeros, to_zero - zeros, below - to_zero, beyond - not_finite, nan, not_finite - nan};
  });
}

// Through a buffer of the type From that holds every value of src.
template <class From>
void convert_through(DType src, const void* in, DType dst, void* out, std::int64_t n, CastCounts* counts) {
  if (src == dtype_of<From>) return cast_and_store(dst, static_cast<const From*>(in), out, 1, n, counts);
  From buffer[kBlock];
  for_blocks(n, [&](std::int64_t first, std::int64_t count) {
    const auto* from = static_cast<const std::byte*>(in) + first * static_cast<std::int64_t>(size_of(src));
    auto* to = static_cast<std::byte*>(out) + first * static_cast<std::int64_t>(size_of(dst));
    fetch_and_cast(src, from, 1, buffer, count);
    cast_and_store(dst, buffer, to, 1, count, counts);
    if (src == dst) std::memcpy(to, from, static_cast<std::size_t>(count) * size_of(src));  // a NaN keeps its bits
  });
}

}  // namespace

template <class To> void fetch_and_cast(DType src, const void* p, std::int64_t stride, To* out, std::int64_t n) {
  if (n <= 0) return;
  visit_dtype(src, [&]<class From> {
    const auto* from = static_cast<const From*>(p);
    if (stride == 1) return detail::cast_array(from, out, n);
    if (stride == 0) {
      std::fill_n(out, n, cast_element<To>(*from));
      return;
    }
    From gathered[kBlock];
    for_blocks(n, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) gathered[i] = from[(first + i) * stride];
      detail::cast_array(gathered, out + first, count);
    });
  });
}

template <class From>
void cast_and_store(DType dst, const From* in, void* p, std::int64_t stride, std::int64_t n, CastCounts* counts) {
  visit_dtype(dst, [&]<class To> {
    auto* const out = static_cast<To*>(p);
    if (stride == 1 && counts == nullptr) return detail::cast_array(in, out, n);
    To rounded[kBlock];
    for_blocks(n, [&](std::int64_t first, std::int64_t count) {
      To* const to = out + first * stride;
      To* const stored = stride == 1 ? to : rounded;
      detail::cast_array(in + first, stored, count);
      for (std::int64_t i = 0; stride != 1 && i < count; ++i) to[i * stride] = rounded[i];
      if (counts == nullptr) return;
      if constexpr (Narrow<To> || std::same_as<To, float>)
        *counts += count_bits(in + first, stored, count, format_of(dst));
      else count_wide<To>(in + first, count, *counts);
    });
  });
}

CastCounts& CastCounts::operator+=(const CastCounts& o) {
  using C = CastCounts;
  for (const auto n : {&C::elements, &C::zeros, &C::underflow, &C::subnormal, &C::overflow, &C::nan, &C::inf})
    this->*n += o.*n;
  return *this;
}

template void fetch_and_cast(DType, const void*, std::int64_t, float*, std::int64_t);
template void fetch_and_cast(DType, const void*, std::int64_t, double*, std::int64_t);
template void fetch_and_cast(DType, const void*, std::int64_t, std::int64_t*, std::int64_t);
template void cast_and_store(DType, const float*, void*, std::int64_t, std::int64_t, CastCounts*);
template void cast_and_store(DType, const double*, void*, std::int64_t, std::int64_t, CastCounts*);
template void cast_and_store(DType, const std::int64_t*, void*, std::int64_t, std::int64_t, CastCounts*);

void convert(DType src, const void* in, DType dst, void* out, std::int64_t n, CastCounts* counts) {
  if (n <= 0) return;
  if (src == dst && !counts) {
    std::memcpy(out, in, static_cast<std::size_t>(n) * size_of(src));
    return;
  }
  if (dst == DType::f32 && !counts) return fetch_and_cast(src, in, 1, static_cast<float*>(out), n);
  if (src == DType::f64) return convert_through<double>(src, in, dst, out, n, counts);
  if (is_floating(src)) return convert_through<float>(src, in, dst, out, n, counts);
  convert_through<std::int64_t>(src, in, dst, out, n, counts);
}

void store_stochastic(DType dst, const float* in, void* p, std::int64_t n, std::uint64_t seed, std::uint64_t stream,
                      std::uint64_t first_element, CastCounts* counts) {
  const Rounder rounder{format_of(dst), {.mode = RoundingMode::stochastic}, Overflow::ieee, {seed, stream}};
  rounder.encode(in, p, n, static_cast<std::int64_t>(first_element), {counts, nullptr});
}

}  // namespace gradual
