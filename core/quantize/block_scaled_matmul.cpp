#include "block_scaled_matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "../formats/accumulate_element.h"
#include "../support/parallel.h"
#include "../support/throwf.h"

namespace gradual {
namespace {

struct Unit {
  const char* name;
  int group;     // products that are added to the sum at a time
  int exact;     // products that are added without scales
  int fraction;  // bits below the largest exponent that are kept
  int least;     // the largest exponent counts as this at least
};
constexpr Unit kF8F6F4{"mxf8f6f4", 32, 1, 25, -133};
constexpr Unit kF4{"mxf4nvf4", 64, 16, 35, -139};

int lowest_exponent(const Format& f) { return 1 - f.bias; }

int exponent_of(double x, int lowest) { return x == 0 ? lowest : std::max(std::ilogb(x), lowest); }

// One operand's row.
struct Row {
  const float* values;
  const float* scales;
  std::int64_t block;
  int lowest_value;
  int lowest_scale;

  Row(const BlockScaledRows& x, std::int64_t i)
      : values(x.values.data<float>() + i * x.values.size(1)),
        scales(x.scales.data<float>() + i * x.scales.size(1)),
        block(x.values.size(1) / x.scales.size(1)),
        lowest_value(lowest_exponent(x.format)),
        lowest_scale(x.scale_format == format("e8m0fnu") ? -127 : lowest_exponent(x.scale_format)) {}
  double scale(std::int64_t k) const { return scales[k / block]; }
};

struct Term {
  double value;
  int exponent;  // of a term other than zero
  bool counts;   // false: its exponent does not
};

// The products from `from` on, unit.exact of them.
Term term_of(const Unit& unit, const Row& a, const Row& b, std::int64_t from) {
  double sum = 0;
  bool any = false;
  for (std::int64_t k = from; k < from + unit.exact; ++k) {
    const double product = static_cast<double>(a.values[k]) * b.values[k];
    sum += product;
    any |= product != 0;
  }
  const double scale = a.scale(from) * b.scale(from);
  int exponent = exponent_of(a.scale(from), a.lowest_scale) + exponent_of(b.scale(from), b.lowest_scale);
  if (unit.exact == 1)
    exponent += exponent_of(a.values[from], a.lowest_value) + exponent_of(b.values[from], b.lowest_value);
  return {sum * scale, exponent, any && scale != 0};
}

double add_group(const Unit& unit, const detail::SumSpec& f32, double sum, const Row& a, const Row& b,
                 std::int64_t from) {
  constexpr int kLowestF32 = -126;
  Term terms[32];
  const int count = unit.group / unit.exact;
  int most = unit.least;
  if (sum != 0) most = std::max(most, exponent_of(sum, kLowestF32));
  double plain = sum;
  for (int i = 0; i < count; ++i) {
    terms[i] = term_of(unit, a, b, from + i * unit.exact);
    plain += terms[i].value;
    if (terms[i].counts) most = std::max(most, terms[i].exponent);
  }
  if (!std::isfinite(plain)) return plain;
  double total = std::trunc(std::ldexp(sum, unit.fraction - most));
  for (int i = 0; i < count; ++i) total += std::trunc(std::ldexp(terms[i].value, unit.fraction - most));
  const double exact = std::ldexp(total, most - unit.fraction);
  detail::LoopCounts none;
  constexpr int kCut = static_cast<int>(RoundingMode::toward_zero);
  const auto bits = detail::round_bits<kCut, false, false, false>(std::bit_cast<std::uint64_t>(exact), 0, f32, none);
  return std::bit_cast<double>(bits);
}

void check_rows(const Unit& unit, const BlockScaledRows& x) {
  if (x.values.dim() != 2 || x.scales.dim() != 2 || x.values.dtype() != DType::f32 || x.scales.dtype() != DType::f32 ||
      !x.values.is_contiguous() || !x.scales.is_contiguous())
    throw_error("block_scaled_matmul: values and scales are contiguous f32 matrices");
  const std::int64_t k = x.values.size(1);
  const std::int64_t blocks = x.scales.size(1);
  const bool divides = k > 0 && k % unit.group == 0 && blocks > 0 && k % blocks == 0;
  const std::int64_t block = divides ? k / blocks : 0;
  const bool fits = block == 32 || (block == 16 && unit.exact == 16);
  if (!fits || x.scales.size(0) != x.values.size(0))
    throwf("block_scaled_matmul: {} takes groups of {} numbers in blocks of {}, not rows of {} with {} scales",
           unit.name, unit.group, unit.exact == 16 ? "16 or 32" : "32", k, blocks);
  const bool powers = x.scale_format == format("e8m0fnu");
  if (!powers && (unit.exact == 1 || x.scale_format != format("e4m3fn") || block != 16))
    throwf("block_scaled_matmul: {} takes scales in e8m0fnu, or e2m1fn numbers in blocks of 16 in e4m3fn, not {}",
           unit.name, to_string(x.scale_format));
}

}  // namespace

BlockScaledRows block_scaled_rows(const QuantizedTensor& q) {
  if (q.shape.size() != 2 || q.axis != 1 || q.block_rows != 1 || !q.scales.defined() || q.zero_points.defined())
    throw_error("block_scaled_rows: it takes a matrix whose rows have blocks with scales and no zero points");
  return {q.decode(), q.scale_values(), q.format, q.scale_format};
}

Tensor block_scaled_matmul(const BlockScaledRows& a, const BlockScaledRows& b) {
  const Format e2m1 = format("e2m1fn");
  const Unit& unit = a.format == e2m1 && b.format == e2m1 ? kF4 : kF8F6F4;
  check_rows(unit, a);
  check_rows(unit, b);
  const std::int64_t k = a.values.size(1);
  if (k != b.values.size(1))
    throwf("block_scaled_matmul: rows of {} and of {} numbers; they must be as long", k, b.values.size(1));
  const detail::SumSpec f32 = detail::sum_spec(Format::ieee(8, 23), {.mode = RoundingMode::toward_zero});
  const std::int64_t columns = b.values.size(0);
  Tensor y = zeros({a.values.size(0), columns});
  float* const to = y.data<float>();
  parallel_for(y.numel(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Row left(a, i / columns);
      const Row right(b, i % columns);
      double sum = 0;
      for (std::int64_t from = 0; from < k; from += unit.group) sum = add_group(unit, f32, sum, left, right, from);
      to[i] = static_cast<float>(sum + 0.0);
    }
  });
  return y;
}

}  // namespace gradual
