#include "numbers.h"

#include <fmt/format.h>

#include "../core/formats/format.h"
#include "../core/ops/ops.h"
#include "../core/support/multiversion.h"
#include "../core/support/parallel.h"

namespace gradual::inspect {
namespace {

constexpr std::int64_t kBlock = 1 << 14, kChunk = 8 * kBlock;  // elements; counts of a block fit in 16 bits

// Adds at most kBlock elements of a dtype by their bits; magnitudes compare as integers. `normal`: the smallest normal
// number.
template <class Bits> Numbers count(DType dtype, const void* values, std::int64_t n, Bits normal, int mantissa_bits) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() / 2, kOne = 1;
  const Bits inf = kMagnitude - ((kOne << mantissa_bits) - 1);
  Bits zeros = 0, below = 0, infs = 0, nan = 0, least = 0, largest = 0;
  const auto* p = static_cast<const Bits*>(values);
  vectorized([&, p, n, normal] {
    Bits z = 0, b = 0, low = kMagnitude, high = 0;
#pragma omp simd reduction(+ : z, b) reduction(min : low) reduction(max : high)
    for (std::int64_t k = 0; k < n; ++k) {
      const Bits m = p[k] & kMagnitude, less = m - kOne;  // 0 becomes the largest
      z += m == 0, b += m < normal;
      low = less < low ? less : low, high = m > high ? m : high;
    }
    zeros = z, below = b, least = low + kOne, largest = high;
  });
  if (largest >= inf) {
    largest = 0;
    for (std::int64_t k = 0; k < n; ++k) {
      const Bits m = p[k] & kMagnitude;
      infs += m == inf, nan += m > inf, largest = m < inf ? std::max(largest, m) : largest;
    }
  }
  Numbers c;
  c.elements = n, c.zeros = zeros, c.subnormal = below - zeros, c.nan = nan, c.inf = infs;
  if (largest) fetch_and_cast(dtype, &least, 1, &c.least, 1), fetch_and_cast(dtype, &largest, 1, &c.largest, 1);
  return c;
}

Numbers count(DType dtype, const void* values, std::int64_t n) {
  if (dtype == DType::f64) return count<std::uint64_t>(dtype, values, n, std::uint64_t{1} << 52, 52);
  const Format format = format_of(dtype);
  const int m = format.mantissa_bits;
  if (dtype == DType::f32) return count<std::uint32_t>(dtype, values, n, 1u << m, m);
  if (is_half(dtype)) return count<std::uint16_t>(dtype, values, n, static_cast<std::uint16_t>(1 << m), m);
  std::vector<float> wide(static_cast<std::size_t>(n));
  fetch_and_cast(dtype, values, 1, wide.data(), n);
  return count(DType::f32, wide.data(), n, std::bit_cast<std::uint32_t>(static_cast<float>(format.min_normal())), 23);
}

}  // namespace

Numbers& Numbers::operator+=(const Numbers& n) {
  elements += n.elements, zeros += n.zeros, subnormal += n.subnormal, nan += n.nan, inf += n.inf;
  if (n.largest > 0) least = largest > 0 ? std::min(least, n.least) : n.least;
  largest = std::max(largest, n.largest);
  return *this;
}

Tensor in_any_order(const Tensor& t) {
  const Unseen unseen;
  const Tensor here = t.detach().to(Device::cpu());
  if (!is_dense(here.sizes(), here.strides())) return contiguous(here);
  return as_strided(here, {here.numel()}, {1}, here.offset());
}

Numbers numbers_of(const Tensor& t) {
  if (!t.defined() || !t.is_floating()) return {};
  const Unseen unseen;
  const Tensor rows = in_any_order(t);
  const std::int64_t n = rows.numel(), width = static_cast<std::int64_t>(size_of(t.dtype()));
  std::vector<Numbers> chunks(static_cast<std::size_t>(n / kChunk + 1));
  parallel_for(n, kChunk, [&, p = static_cast<const char*>(rows.raw())](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += kBlock)
      chunks[static_cast<std::size_t>(begin / kChunk)] += count(t.dtype(), p + i * width, std::min(kBlock, end - i));
  });
  Numbers sum;
  for (const Numbers& c : chunks) sum += c;
  return sum;
}

std::string to_string(const Numbers& n) {
  if (n.elements == 0) return "empty";
  std::string text =
      n.largest > 0 ? fmt::format("2^{:.3g} to 2^{:.3g}", std::log2(n.least), std::log2(n.largest)) : "no number but 0";
  if (n.zeros) text += fmt::format(", {:.3g}% zero", n.zero_percent());
  if (n.subnormal) text += fmt::format(", {} subnormal", n.subnormal);
  if (n.nan) text += fmt::format(", {} NaN", n.nan);
  if (n.inf) text += fmt::format(", {} Inf", n.inf);
  return text;
}

}  // namespace gradual::inspect
