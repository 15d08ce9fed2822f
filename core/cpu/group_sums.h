// The sum of a group of products and the sum so far, as AMD's matrix cores form it (GroupSum in
// core/formats/accumulator.h). MMA-Sim (arXiv 2511.10909) found these by tests of the hardware.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "../formats/accumulate_element.h"

namespace gradual::cpu {

constexpr int kMostInGroup = 64;
constexpr std::int64_t kNoExponent = -1023;  // of zero

// log2 of a magnitude, rounded down; kNoExponent for zero, 1024 for Inf and NaN.
inline std::int64_t exponent_of(double x) {
  return static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(x) << 1 >> 53) + kNoExponent;
}

// 2^exponent, at least 2^-1022.
inline double power_of_two(std::int64_t exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(std::max<std::int64_t>(exponent, -1022) + 1023) << 52);
}

struct GroupSpec : detail::SumSpec {
  int fraction = 0;                          // of Accumulator
  std::int64_t operands_from = kNoExponent;  // its `lowest`
  detail::SumSpec product = {};              // its `product`, if it has one
  std::int64_t lowest_exponent() const { return min_exponent - 1023; }
};

// Operands are f32 values.
struct Group {
  double a[kMostInGroup];
  double b[kMostInGroup];
  std::int64_t count;

  std::int64_t exponent(const GroupSpec& s, std::int64_t i) const {
    return std::max(exponent_of(a[i]), s.operands_from) + std::max(exponent_of(b[i]), s.operands_from);
  }
};

template <int loop> double round_sum(const GroupSpec& s, std::uint64_t bits, std::uint32_t random) {
  detail::LoopCounts none;
  return std::bit_cast<double>(detail::round_bits<loop, false, false, false>(bits, random, s, none));
}

// Repeated TwoSums (Knuth, TAOCP 2, 4.2.2) leave terms of which each is the rounded sum of itself and the one below.
// The sign of the second largest then says on which side of the largest the exact sum lies.
template <int loop> double exact_group_sum(const GroupSpec& s, double sum, const Group& g, std::uint32_t random) {
  double terms[kMostInGroup + 1];
  double plain = sum;
  for (std::int64_t i = 0; i < g.count; ++i) {
    terms[i] = g.a[i] * g.b[i];
    plain += terms[i];
  }
  if (plain - plain != 0) return plain;  // an Inf or a NaN
  terms[g.count] = sum;
  for (bool changes = true; changes;) {
    changes = false;
    for (std::int64_t i = 1; i <= g.count; ++i) {
      const double high = terms[i] + terms[i - 1];
      const double of_low = high - terms[i];
      const double low = (terms[i] - (high - of_low)) + (terms[i - 1] - of_low);
      changes |= high != terms[i];
      terms[i] = high;
      terms[i - 1] = low;
    }
  }
  const double below = g.count > 0 ? terms[g.count - 1] : 0;
  return round_sum<loop>(s, detail::sum_to_odd(terms[g.count], below), random);
}

// x, or a zero of its sign if it is below the format's normal numbers.
inline double without_subnormal(const GroupSpec& s, double x) {
  return std::fabs(x) < power_of_two(s.lowest_exponent()) ? std::copysign(0.0, x) : x;
}

template <int loop> double pairwise_group_sum(const GroupSpec& s, double sum, const Group& g, std::uint32_t) {
  const double least = s.operands_from == kNoExponent ? 0 : power_of_two(s.operands_from);
  const auto operand = [&](double x) { return std::fabs(x) < least ? 0.0 : x; };
  const auto rounded_sum = [&](double x, double y) { return without_subnormal(s, detail::add_rounded<loop>(s, x, y)); };
  double terms[kMostInGroup];
  for (std::int64_t i = 0; i < g.count; ++i) {
    const double product = operand(g.a[i]) * operand(g.b[i]);
    terms[i] = without_subnormal(s, round_sum<loop>(s, std::bit_cast<std::uint64_t>(product), 0));
  }
  for (std::int64_t count = g.count; count > 1; count = (count + 1) / 2)
    for (std::int64_t i = 0; i < count; i += 2)
      terms[i / 2] = i + 1 < count ? rounded_sum(terms[i], terms[i + 1]) : terms[i];
  return rounded_sum(sum, terms[0]);
}

// The sum of products with a step of `stride` from `first`, cut s.fraction bits below the largest exponent.
struct AlignedSum {
  double value = 0;
  std::int64_t exponent = kNoExponent;

  AlignedSum(const GroupSpec& s, const Group& g, std::int64_t first, std::int64_t stride) {
    for (std::int64_t i = first; i < g.count; i += stride)
      if (g.a[i] * g.b[i] != 0) exponent = std::max(exponent, g.exponent(s, i));
    if (exponent == kNoExponent) return;
    const double unit = power_of_two(s.fraction - exponent);
    for (std::int64_t i = first; i < g.count; i += stride) value += std::trunc(g.a[i] * g.b[i] * unit);
    value *= power_of_two(exponent - s.fraction);
  }
};

// x without what is below 2^place, rounded down.
inline double floor_at(double x, std::int64_t place) {
  return std::floor(x * power_of_two(-place)) * power_of_two(place);
}

template <int loop, bool even_odd>
double late_group_sum(const GroupSpec& s, double sum, const Group& g, std::uint32_t random) {
  constexpr double kOverflow = 0x1p128;
  constexpr int kGuard = 8;
  double plain = sum;
  for (std::int64_t i = 0; i < g.count; ++i) {
    const double product = g.a[i] * g.b[i];
    const bool overflows = !even_odd && std::fabs(product) >= kOverflow;
    plain += overflows ? std::copysign(HUGE_VAL, product) : product;
  }
  if (plain - plain != 0) return plain;
  AlignedSum products(s, g, 0, even_odd ? 2 : 1);
  if constexpr (even_odd) {
    const AlignedSum odd(s, g, 1, 2);
    products.exponent = std::max(products.exponent, odd.exponent);
    const std::int64_t last = products.exponent - s.fraction;
    if (products.exponent != kNoExponent) products.value = floor_at(products.value, last) + floor_at(odd.value, last);
  }
  const std::int64_t of_sum = std::max(exponent_of(sum), s.lowest_exponent());
  const std::int64_t most = std::max(products.exponent, of_sum);
  const bool vanishes = even_odd && of_sum < most - s.fraction - 1;
  const double kept = vanishes ? 0 : floor_at(sum, most - s.fraction);
  const double total = floor_at(products.value, most - s.fraction - kGuard) + kept;
  const std::int64_t leading = std::max(exponent_of(total), s.lowest_exponent());
  const double cut = floor_at(total, leading - s.fraction - kGuard + 1);
  return round_sum<loop>(s, std::bit_cast<std::uint64_t>(cut), random);
}

}  // namespace gradual::cpu
