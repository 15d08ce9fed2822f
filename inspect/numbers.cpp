#include "numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "../core/formats/format.h"
#include "../core/support/parallel.h"

namespace gradual::inspect {
namespace {

// elements; counts of a block fit in 16 bits
constexpr std::int64_t kBlock = 1 << 14;
constexpr std::int64_t kChunk = 8 * kBlock;

// Adds at most kBlock elements of a dtype by their bits; magnitudes compare as integers. `normal`: the smallest normal
// number.
template <class Bits> Numbers count(DType dtype, const void* values, std::int64_t n, Bits normal, int mantissa_bits) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() / 2;
  constexpr Bits kOne = 1;
  const Bits inf = kMagnitude - ((kOne << mantissa_bits) - 1);
  Bits zeros = 0;
  Bits below = 0;
  Bits infs = 0;
  Bits nan = 0;
  Bits least = 0;
  Bits largest = 0;
  const auto* p = static_cast<const Bits*>(values);
  vectorized([&, p, n, normal] {
    Bits z = 0;
    Bits b = 0;
    Bits low = kMagnitude;
    Bits high = 0;
#pragma omp simd reduction(+ : z, b) reduction(min : low) reduction(max : high)
    for (std::int64_t k = 0; k < n; ++k) {
      // 0 becomes the largest
      const Bits m = p[k] & kMagnitude;
      const Bits less = m - kOne;
      z += m == 0;
      b += m < normal;
      low = less < low ? less : low;
      high = m > high ? m : high;
    }
    zeros = z;
    below = b;
    least = low + kOne;
    largest = high;
  });
  if (largest >= inf) {
    largest = 0;
    for (std::int64_t k = 0; k < n; ++k) {
      const Bits m = p[k] & kMagnitude;
      infs += m == inf;
      nan += m > inf;
      largest = m < inf ? std::max(largest, m) : largest;
    }
  }
  Numbers c;
  c.elements = n;
  c.zeros = zeros;
  c.subnormal = below - zeros;
  c.nan = nan;
  c.inf = infs;
  if (largest) {
    fetch_and_cast(dtype, &least, 1, &c.least, 1);
    fetch_and_cast(dtype, &largest, 1, &c.largest, 1);
  }
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

constexpr std::int64_t kBias = 1023;
constexpr std::int64_t kMantissa = 52;

double power(std::int64_t e) { return std::bit_cast<double>((kBias + e) << kMantissa); }
bool is_finite(double v) { return std::abs(v) < std::numeric_limits<double>::infinity(); }

// The spacing of a dtype at 2^exponent is 2^(max(exponent, lowest) - mantissa).
struct Spacing {
  // of f64
  std::int64_t mantissa = kMantissa;
  std::int64_t lowest = 1 - kBias;
};

// Adds the error y - x of n elements; its ulps are not needed everywhere. The elements are first added without a check
// of each. If a sum is not finite, they are added again, with it.
template <bool ulps_too, bool checks = false>
void add(ErrorSum& to, const double* y, const double* x, std::int64_t n, Spacing of) {
  double squares = 0;
  double exact = 0;
  double most = 0;
  double ulps = 0;
  double elements = 0;
  double lost = 0;
  double sum = 0;
  double along = 0;
  double along_squares = 0;
#pragma omp simd reduction(+ : squares, exact, ulps, elements, lost, sum, along, along_squares) reduction(max : most)
  for (std::int64_t i = 0; i < n; ++i) {
    const bool known = !checks || is_finite(x[i]);
    const bool both = known && (!checks || is_finite(y[i]));
    const double value = both ? x[i] : 0;
    const double error = both ? y[i] - x[i] : 0;
    const double given = both ? std::abs(y[i]) : 0;
    const double magnitude = given > std::abs(value) ? given : std::abs(value);
    const std::int64_t exponent = (std::bit_cast<std::int64_t>(magnitude) >> kMantissa) - kBias;
    const std::int64_t spacing = (exponent > of.lowest ? exponent : of.lowest) - of.mantissa;
    const std::int64_t half = spacing >> 1;
    // Two factors, because 2^1074 is not an f64. A shift: g++ does not vectorise a division by 2.
    const double in_ulps = !ulps_too ? 0 : std::abs(error) * power(-half) * power(half - spacing);
    squares += error * error;
    exact += value * value;
    sum += error;
    along += error * value;
    along_squares += error * value * (error * value);
    most = in_ulps > most ? in_ulps : most;
    ulps += in_ulps;
    elements += both;
    lost += known && !both;
  }
  if (!checks && !is_finite(squares + exact)) return add<ulps_too, true>(to, y, x, n, of);
  to.squares += squares;
  to.exact_squares += exact;
  to.sum += sum;
  to.along += along;
  to.along_squares += along_squares;
  to.sum_ulps += ulps;
  to.max_ulps = std::max(to.max_ulps, most);
  to.elements += checks ? static_cast<std::int64_t>(elements) : n;
  to.lost += static_cast<std::int64_t>(lost);
}

double inner(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += is_finite(a[i] * b[i]) ? a[i] * b[i] : 0;
  return sum;
}

}  // namespace

double ErrorSum::bias() const {
  if (elements == 0 || exact_squares == 0) return 0;
  const auto n = static_cast<double>(elements);
  return sum / n / std::sqrt(exact_squares / n);
}

double ErrorSum::bias_interval() const {
  if (elements < 2 || exact_squares == 0) return 0;
  const auto n = static_cast<double>(elements);
  const double variance = std::max(0.0, squares - sum * sum / n) / (n - 1);
  return 1.96 * std::sqrt(variance / exact_squares);
}

std::string with_interval(double value, double half) { return fmt::format("{:+.2g} +- {:.1g}", value, half); }

Numbers& Numbers::operator+=(const Numbers& n) {
  elements += n.elements;
  zeros += n.zeros;
  subnormal += n.subnormal;
  nan += n.nan;
  inf += n.inf;
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
  const Tensor rows = in_any_order(t);
  const std::int64_t n = rows.numel();
  const std::int64_t width = static_cast<std::int64_t>(size_of(t.dtype()));
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
  if (n.zeros) text += fmt::format(", {:.3g}% zero", percent_of(n.zeros, n.elements));
  for (const auto& [count, what] : {std::pair(n.subnormal, "subnormal"), {n.nan, "NaN"}, {n.inf, "Inf"}})
    if (count) text += fmt::format(", {} {}", count, what);
  return text;
}

Tensor minus(const Tensor& a, const Tensor& b) {
  const Unseen unseen;
  Tensor difference = empty(a.sizes(), {.dtype = DType::f64});
  auto* to = difference.data<double>();
  in_blocks(std::array{a, b},
            [&to](const auto& p, std::int64_t n) { to = std::transform(p[0], p[0] + n, p[1], to, std::minus()); });
  return difference;
}
double inner(const Tensor& a, const Tensor& b) {
  double sum = 0;
  in_blocks(std::array{a, b}, [&sum](const auto& p, std::int64_t n) { sum += inner(p[0], p[1], n); });
  return sum;
}

Comparison compare(const Tensor& given, const Tensor& exact, const Tensor& shadow, DType dtype) {
  Comparison c;
  double product = 0;
  double size_y = 0;
  const FloatInfo info = float_info(dtype);
  const Spacing of{info.mantissa_bits, std::ilogb(info.min_normal)};
  in_blocks(std::array{given, exact, shadow}, [&, of](const auto& p, std::int64_t n) {
    const double* y = p[0];
    const double* x = p[1];
    const double* s = p[2];
    add<true>(c.local, y, x, n, of);
    if (x != s) add<true>(c.inherited, x, s, n, of);
    add<true>(c.total, y, s, n, of);
    product += inner(y, s, n);
    size_y += inner(y, y, n);
  });
  if (const double size = std::sqrt(size_y * c.total.exact_squares); size > 0) c.cosine = product / size;
  return c;
}

ErrorSum error_of(const Tensor& given, const Tensor& exact) {
  ErrorSum e;
  in_blocks(std::array{given, exact}, [&e](const auto& p, std::int64_t n) { add<false>(e, p[0], p[1], n, {}); });
  return e;
}

}  // namespace gradual::inspect
