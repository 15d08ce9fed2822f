#include "numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "../core/formats/convert.h"
#include "../core/formats/format.h"
#include "../core/ops/ops.h"

namespace gradual::inspect {
namespace {

// Bits is the unsigned integer of T's width: magnitudes compare as integers.
template <class T, class Bits>
void add(Numbers& to, const T* values, std::int64_t n, T normal, Bits& least, Bits& largest) {
  constexpr Bits kMagnitude = ~Bits{0} >> 1, kInf = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  const Bits smallest_normal = std::bit_cast<Bits>(normal);
  std::int64_t zeros = 0, subnormal = 0, nan = 0, inf = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const Bits m = std::bit_cast<Bits>(values[i]) & kMagnitude;
    zeros += m == 0;
    subnormal += m - 1 < smallest_normal - 1;
    inf += m == kInf;
    nan += m > kInf;
    least = std::min(least, m == 0 ? kInf : m);
    largest = std::max(largest, m < kInf ? m : Bits{0});
  }
  to.zeros += zeros, to.subnormal += subnormal, to.nan += nan, to.inf += inf;
}

template <class T, class Bits> void count(Numbers& to, const Tensor& t) {
  const auto* p = static_cast<const char*>(t.raw());
  const auto width = static_cast<std::int64_t>(size_of(t.dtype()));
  const auto normal =
      t.dtype() == DType::f64 ? std::numeric_limits<T>::min() : static_cast<T>(format_of(t.dtype()).min_normal());
  Bits least = std::bit_cast<Bits>(std::numeric_limits<T>::infinity()), largest = 0;
  constexpr std::int64_t kBlock = 1024;
  T block[kBlock];
  for (std::int64_t i = 0; i < to.elements; i += kBlock) {
    const std::int64_t n = std::min(kBlock, to.elements - i);
    fetch_and_cast(t.dtype(), p + i * width, 1, block, n);
    add<T, Bits>(to, block, n, normal, least, largest);
  }
  if (largest) to.least = std::bit_cast<T>(least), to.largest = std::bit_cast<T>(largest);
}

}  // namespace

Numbers numbers_of(const Tensor& t) {
  Numbers n;
  if (!t.defined() || !t.is_floating()) return n;
  const Unseen unseen;
  const Tensor rows = contiguous(t.detach().to(Device::cpu()));
  n.elements = rows.numel();
  if (t.dtype() == DType::f64) count<double, std::uint64_t>(n, rows);
  else count<float, std::uint32_t>(n, rows);
  return n;
}

Tensor f64_of(const Tensor& t) {
  if (!t.defined()) return {};
  const Unseen unseen;
  const Tensor rows = contiguous(cast(t.detach().to(Device::cpu()), DType::f64));
  return rows.shares_storage(t) ? rows.clone() : rows;
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
