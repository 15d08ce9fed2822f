#include "error_sum.h"

#include "../core/formats/format.h"

namespace gradual::inspect {
namespace {

constexpr std::int64_t kBias = 1023, kMantissa = 52;

bool is_finite(double v) { return std::abs(v) < std::numeric_limits<double>::infinity(); }

// Adds the error y - x of n elements. 2^-(max(exponent, lowest) - mantissa) is the inverse of the spacing there.
void add(ErrorSum& to, const double* y, const double* x, std::int64_t n, std::int64_t mantissa, std::int64_t lowest) {
  double squares = 0, exact = 0, most = 0, ulps = 0, elements = 0, lost = 0;
#pragma omp simd reduction(+ : squares, exact, ulps, elements, lost) reduction(max : most)
  for (std::int64_t i = 0; i < n; ++i) {
    const bool known = is_finite(x[i]), both = known && is_finite(y[i]);
    const double value = both ? x[i] : 0, error = both ? y[i] - x[i] : 0;
    const double given = both ? std::abs(y[i]) : 0, magnitude = given > std::abs(value) ? given : std::abs(value);
    const std::int64_t exponent = (std::bit_cast<std::int64_t>(magnitude) >> kMantissa) - kBias;
    const std::int64_t spacing = (exponent > lowest ? exponent : lowest) - mantissa;
    // Two factors, because 2^1074 is not an f64.
    const double in_ulps = std::abs(error) * 0x1p60 * std::bit_cast<double>((kBias - 60 - spacing) << kMantissa);
    squares += error * error, exact += value * value;
    most = in_ulps > most ? in_ulps : most;
    ulps += in_ulps;
    elements += both, lost += known && !both;
  }
  to.squares += squares, to.exact_squares += exact, to.sum_ulps += ulps;
  to.max_ulps = std::max(to.max_ulps, most);
  to.elements += static_cast<std::int64_t>(elements), to.lost += static_cast<std::int64_t>(lost);
}

double inner(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += is_finite(a[i] * b[i]) ? a[i] * b[i] : 0;
  return sum;
}

}  // namespace

double ErrorSum::relative() const { return squares == 0 ? 0 : std::sqrt(squares / exact_squares); }
double ErrorSum::sqnr_db() const {
  return squares == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(exact_squares / squares);
}

Tensor minus(const Tensor& a, const Tensor& b) {
  const Unseen unseen;
  const Tensor difference = empty(a.sizes(), {.dtype = DType::f64});
  auto* to = difference.data<double>();
  in_blocks(std::array{a, b}, [&to](const auto& p, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = p[0][i] - p[1][i];
    to += n;
  });
  return difference;
}
double squares(const Tensor& a) { return inner(a, a); }
double squares(const Tensor& a, const Tensor& b) {
  double sum = 0;
  in_blocks(std::array{a, b}, [&sum](const auto& p, std::int64_t n) {
    double error[kErrorBlock];
    for (std::int64_t i = 0; i < n; ++i) error[i] = p[0][i] - p[1][i];
    sum += inner(error, error, n);
  });
  return sum;
}
double inner(const Tensor& a, const Tensor& b) {
  double sum = 0;
  in_blocks(std::array{a, b}, [&sum](const auto& p, std::int64_t n) { sum += inner(p[0], p[1], n); });
  return sum;
}

Comparison compare(const Tensor& given, const Tensor& exact, const Tensor& shadow, DType dtype) {
  const bool wide = dtype == DType::f64;
  const std::int64_t mantissa = wide ? kMantissa : format_of(dtype).mantissa_bits;
  const std::int64_t lowest = wide ? 1 - kBias : std::ilogb(format_of(dtype).min_normal());
  Comparison c;
  double product = 0, size_y = 0, size_s = 0;
  in_blocks(std::array{given, exact, shadow}, [&, mantissa, lowest](const auto& p, std::int64_t n) {
    const double *y = p[0], *x = p[1], *s = p[2];
    add(c.local, y, x, n, mantissa, lowest);
    if (x != s) add(c.inherited, x, s, n, mantissa, lowest);
    add(c.total, y, s, n, mantissa, lowest);
    product += inner(y, s, n);
    size_y += inner(y, y, n), size_s += inner(s, s, n);
  });
  if (const double size = std::sqrt(size_y * size_s); size > 0) c.cosine = product / size;
  return c;
}

}  // namespace gradual::inspect
