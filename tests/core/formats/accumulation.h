// Accumulators from their definition, in integers: values are multiples of 2^-60 in 128 bits, so that a product and a
// sum are exact, and rounding is a division with a remainder.
#pragma once

#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/tensors.h"

namespace accumulation {

using namespace gradual;
using namespace gradual::testing;

__extension__ using Int = __int128;
inline constexpr int kUnit = 60;
inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline Int fixed(double x) {
  const double scaled = std::ldexp(x, kUnit);
  if (scaled != std::nearbyint(scaled) || !(std::fabs(scaled) < 0x1p126)) FAIL("the test's own numbers: ", x);
  return static_cast<Int>(scaled);
}
// Of multiples of 2^-30.
inline Int product(double a, double b) { return fixed(a) / (Int{1} << 30) * (fixed(b) / (Int{1} << 30)); }

// `odd`: the last bit of the code of the lower magnitude.
inline bool goes_up(RoundingMode mode, bool odd, Int rest, Int half, bool negative) {
  using enum RoundingMode;
  switch (mode) {
    case nearest_even: return rest > half || (rest == half && odd);
    case nearest_away: return rest >= half;
    case up: return rest > 0 && !negative;
    case down: return rest > 0 && negative;
    case to_odd: return rest > 0 && !odd;
    default: return false;
  }
}

inline double rounded(Int exact, const Format& f, RoundingMode mode) {
  const bool negative = exact < 0;
  const Int magnitude = negative ? -exact : exact;
  int top = -1;
  while (top < 126 && magnitude >> (top + 1) != 0) ++top;
  const int binade = std::max(top - kUnit, 1 - f.bias);
  const int depth = binade - f.mantissa_bits + kUnit;  // bits below the spacing
  double value = 0;
  if (depth <= 0) {
    value = std::ldexp(static_cast<double>(magnitude), -kUnit);
  } else {
    Int count = magnitude >> depth;
    const int code_of_exponent = f.mantissa_bits == 0 ? binade - 1 + f.bias : 0;
    const bool odd = (count + code_of_exponent) % 2 == 1;
    if (goes_up(mode, odd, magnitude - (count << depth), Int{1} << (depth - 1), negative)) ++count;
    value = std::ldexp(static_cast<double>(count), depth - kUnit);
  }
  if (value > f.max()) value = f.has_inf ? kInf : f.nan != NanEncoding::none ? std::nan("") : f.max();
  return negative ? -value : value;
}

struct Step {
  Format format;
  RoundingMode mode;
  double operator()(double sum, Int term) const {
    return std::isfinite(sum) ? rounded(fixed(sum) + term, format, mode) : sum;
  }
};

// The sum and a product that is rounded before, if it has a format.
inline double updated(const Accumulator& how, const Step& own, double sum, Int exact) {
  if (!how.product) return own(sum, exact);
  const double term = rounded(exact, *how.product, RoundingMode::nearest_even);
  return std::isfinite(term) ? own(sum, fixed(term)) : sum + term;
}

// Products [from, to) and the sum, cut below the largest exponent (exact sums: not cut) and added exactly.
inline double grouped(const Accumulator& how, double sum, const std::vector<double>& a, const std::vector<double>& b,
                      std::size_t from, std::size_t to) {
  if (!std::isfinite(sum)) return sum;
  constexpr int kNone = -10000;
  const int lowest = how.lowest.value_or(kNone);
  int most = sum == 0 ? kNone : std::max(std::ilogb(sum), 1 - how.format.bias);
  for (std::size_t i = from; i < to; ++i)
    if (a[i] * b[i] != 0)
      most = std::max(most, std::max(std::ilogb(a[i]), lowest) + std::max(std::ilogb(b[i]), lowest));
  if (most == kNone) return 0;
  const int shift = how.adds == GroupSum::exact ? 0 : std::max(0, most - how.fraction + kUnit);
  const auto cut = [shift](Int x) { return x / (Int{1} << shift) * (Int{1} << shift); };
  Int total = cut(fixed(sum));
  for (std::size_t i = from; i < to; ++i) total += cut(product(a[i], b[i]));
  return rounded(total, how.format, how.rounding.mode);
}

// What the header says, a product at a time.
inline double dot(const Accumulator& how, const std::vector<double>& a, const std::vector<double>& b) {
  const Step own{how.format, how.rounding.mode};
  const Step f32{Format::ieee(8, 23), RoundingMode::nearest_even};
  const std::size_t k = a.size();
  const std::size_t group = how.promote ? static_cast<std::size_t>(how.promote) : k;
  double total = 0;
  for (std::size_t first = 0; first < k; first += group) {
    const std::size_t last = std::min(k, first + group);
    const std::size_t chunk = how.chunk ? static_cast<std::size_t>(how.chunk) : k;
    double sum = 0;
    for (std::size_t from = first; from < last; from += chunk) {
      double chain = 0;
      const std::size_t end = std::min(last, from + chunk);
      const auto at_once = static_cast<std::size_t>(how.group);
      for (std::size_t i = from; at_once && i < end; i += at_once)
        chain = grouped(how, chain, a, b, i, std::min(end, i + at_once));
      for (std::size_t i = from; !at_once && i < end; ++i)
        chain = how.f64 ? chain + a[i] * b[i] : updated(how, own, chain, product(a[i], b[i]));
      if (!how.chunk) sum = chain;
      else if (how.f64 || !std::isfinite(chain)) sum += chain;
      else sum = own(sum, fixed(chain));
    }
    if (!how.promote) total = sum;
    else if (!std::isfinite(sum)) total += sum;
    else total = f32(total, fixed(sum));
  }
  return total;
}

// Numbers of up to `bits` bits that are multiples of 2^-30 and below 2^top.
inline Tensor numbers(const Shape& sizes, int bits, int top, std::uint64_t seed) {
  Generator g(seed);
  std::vector<double> v;
  const Tensor digits = randint(-(std::int64_t{1} << bits), std::int64_t{1} << bits, sizes, {.dtype = DType::i64}, g);
  const Tensor exponents = randint(bits - 30, top + 1, sizes, {.dtype = DType::i64}, g);
  for (std::int64_t i = 0; i < digits.numel(); ++i)
    v.push_back(std::ldexp(at(digits, i), static_cast<int>(at(exponents, i)) - bits));
  return from_data(v, sizes, {.dtype = DType::f32});
}

inline std::vector<double> row(const Tensor& t, std::int64_t i) { return values(t.select(0, i).contiguous()); }
inline bool same(double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); }

// Elements of `got` that differ from expected(i).
inline int differing(const Tensor& got, const std::function<double(std::int64_t)>& expected) {
  int wrong = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i) wrong += !same(at(got, i), expected(i));
  return wrong;
}

inline Tensor under(const std::string& name, const std::function<Tensor()>& f) {
  const AccumulatorScope scope(accumulator(name));
  return f();
}

}  // namespace accumulation
