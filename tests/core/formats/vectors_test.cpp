// What other implementations and the specifications say, number by number.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/core/quantize/quantizer.h>

#include <string>

#include "inputs.h"

using namespace gradual;
using enum RoundingMode;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr auto kIeee = Overflow::ieee;
constexpr auto kSaturate = Overflow::saturate;
constexpr auto kFinite = Overflow::saturate_finite;
constexpr auto kMlDtypes = Overflow::ml_dtypes;

double above(double x) { return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity()); }
double below(double x) { return std::nextafter(static_cast<float>(x), 0.0F); }

// The code of x, which must be the reference's and not depend on the source's type.
std::uint32_t code(std::string_view name, double x, RoundingMode mode = nearest_even, Overflow overflow = kIeee) {
  const Rounder r{format(name), {mode}, overflow};
  const std::uint32_t of_double = reference::code_at(r.format, reference::encode<double>(r, {x}), 0);
  const std::uint32_t of_float = reference::code_at(r.format, reference::encode<float>(r, {static_cast<float>(x)}), 0);
  const reference::Result expected = reference::round_function(mode)(r.format, overflow, x, {});
  CAPTURE(name);
  CAPTURE(x);
  CHECK(of_double == expected.code);
  CHECK(of_float == expected.code);
  return of_float;
}

struct Vector {
  double x;
  std::uint32_t code;
};
void check_vectors(std::string_view name, RoundingMode mode, Overflow overflow, const std::vector<Vector>& vectors) {
  for (const Vector& v : vectors) {
    const std::string what = fmt::format("{} of {:a}: {:x}", name, v.x, v.code);
    CAPTURE(what);
    CHECK(code(name, v.x, mode, overflow) == v.code);
  }
}

}  // namespace

TEST_CASE("the table of formats") {
  struct Row {
    std::string_view name;
    int sign, exponent, mantissa, bias;
    double max, min_normal, min_positive;
    bool inf;
    std::vector<std::uint32_t> nans;  // the first and last of each run of NaN codes
    double overflow;                  // the smallest f32 that becomes Inf or NaN, to nearest even; 0: none does
  };
  const Row rows[] = {
      {"fp16", 1, 5, 10, 15, 65504, 0x1p-14, 0x1p-24, true, {0x7c01, 0x7fff, 0xfc01, 0xffff}, 65520},
      {"bf16", 1, 8, 7, 127, 0x1.FEp127, 0x1p-126, 0x1p-133, true, {0x7f81, 0x7fff, 0xff81, 0xffff}, 0x1.FFp127},
      {"tf32", 1, 8, 10, 127, 0x1.FFCp127, 0x1p-126, 0x1p-136, true, {0x3fc01, 0x3ffff, 0x7fc01, 0x7ffff}, 0x1.FFEp127},
      {"e4m3fn", 1, 4, 3, 7, 448, 0x1p-6, 0x1p-9, false, {0x7f, 0x7f, 0xff, 0xff}, above(464)},
      {"e5m2", 1, 5, 2, 15, 57344, 0x1p-14, 0x1p-16, true, {0x7d, 0x7f, 0xfd, 0xff}, 61440},
      {"e4m3fnuz", 1, 4, 3, 8, 240, 0x1p-7, 0x1p-10, false, {0x80, 0x80}, 248},
      {"e5m2fnuz", 1, 5, 2, 16, 57344, 0x1p-15, 0x1p-17, false, {0x80, 0x80}, 61440},
      {"e8m0fnu", 0, 8, 0, 127, 0x1p127, 0x1p-127, 0x1p-127, false, {0xff, 0xff}, 0x1.8p127},
      {"e2m3fn", 1, 2, 3, 1, 7.5, 1, 0.125, false, {}, 0},
      {"e3m2fn", 1, 3, 2, 3, 28, 0.25, 0.0625, false, {}, 0},
      {"e2m1fn", 1, 2, 1, 1, 6, 1, 0.5, false, {}, 0},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Format f = format(row.name);
    CHECK(f.bits() == row.sign + row.exponent + row.mantissa);
    CHECK(f.exponent_bits == row.exponent);
    CHECK(f.mantissa_bits == row.mantissa);
    CHECK(f.bias == row.bias);
    CHECK(f.max() == row.max);
    CHECK(f.min_normal() == row.min_normal);
    CHECK(f.min_positive() == row.min_positive);
    CHECK(f.has_inf == row.inf);
    for (std::uint32_t c = 0; c < 1u << f.bits(); ++c) {
      bool nan = false;
      for (std::size_t i = 0; i < row.nans.size(); i += 2) nan |= c >= row.nans[i] && c <= row.nans[i + 1];
      if (std::isnan(f.decode(c)) != nan) FAIL_CHECK(fmt::format("code {:x} of {}", c, row.name));
    }
    if (row.overflow == 0) {
      CHECK(code(row.name, 1e30) == f.max_code());
      CHECK(code(row.name, -kInf) == (f.max_code() | f.sign_bit()));
    } else {
      CHECK(code(row.name, row.overflow) == f.inf_code().value_or(f.nan_code().value_or(0)));
      CHECK(code(row.name, below(row.overflow)) == f.max_code());
    }
  }
}

TEST_CASE("every code has the value of the definition") {
  for (const Format& f : reference::all_formats()) {
    const std::string what = to_string(f);
    CAPTURE(what);
    CHECK_NOTHROW(check_valid(f));
    const reference::Codes c = reference::codes_of(f);
    CHECK(f.max_code() == c.largest);
    CHECK(f.sign_bit() == c.sign);
    CHECK(f.inf_code() == (f.has_inf ? std::optional(c.inf) : std::nullopt));
    CHECK(f.nan_code() == (f.nan != NanEncoding::none ? std::optional(c.nan) : std::nullopt));
    CHECK(f.max() == reference::decode(f, c.largest));
    const std::uint32_t step = f.bits() > 20 ? 4093 : 1;
    int failures = 0;
    for (std::uint64_t code = 0; code < std::uint64_t{1} << f.bits(); code += step) {
      const auto narrow = static_cast<std::uint32_t>(code);
      failures += reference::value_bits(f.decode(narrow)) != reference::value_bits(f, narrow);
    }
    CHECK(failures == 0);
  }
}

TEST_CASE("decode of arrays is decode of codes") {
  for (const Format& f : reference::all_formats()) {
    const std::uint32_t step = f.bits() > 20 ? 65521 : 1;
    std::vector<std::uint8_t> bytes;
    std::vector<std::uint32_t> codes;
    for (std::uint64_t c = 0; c < std::uint64_t{1} << f.bits(); c += step) {
      codes.push_back(static_cast<std::uint32_t>(c));
      for (int b = 0; b < code_bytes(f); ++b) bytes.push_back(static_cast<std::uint8_t>(c >> (8 * b)));
    }
    std::vector<float> values(codes.size());
    decode(f, bytes.data(), values.data(), static_cast<std::int64_t>(codes.size()));
    int failures = 0;
    for (std::size_t i = 0; i < codes.size(); ++i)
      failures += reference::value_bits(values[i]) != reference::value_bits(f, codes[i]);
    const std::string what = to_string(f);
    CHECK_MESSAGE(failures == 0, what);
  }
}

// From ml_dtypes 0.6 and the host paths of the CUDA 13 headers, which agree on them.
TEST_CASE("vectors, to nearest even") {
  check_vectors("e4m3fn", nearest_even, kIeee,
                {{448, 0x7e},
                 {464, 0x7e},
                 {above(464), 0x7f},
                 {480, 0x7f},
                 {-480, 0xff},
                 {17, 0x58},
                 {19, 0x5a},
                 {248, 0x78},
                 {0x1p-10, 0x00},
                 {above(0x1p-10), 0x01},
                 {0x1.8p-9, 0x02},
                 {0x1.Ep-7, 0x08},
                 {-0.0, 0x80}});
  check_vectors("e4m3fn", nearest_even, kSaturate, {{above(464), 0x7e}, {1e30, 0x7e}, {-480, 0xfe}});
  check_vectors(
      "e5m2", nearest_even, kIeee,
      {{below(61440), 0x7b}, {61440, 0x7c}, {-61440, 0xfc}, {0x1p-17, 0x00}, {0x1.8p-16, 0x02}, {9, 0x48}, {11, 0x4a}});
  check_vectors("e5m2", nearest_even, kSaturate, {{61440, 0x7b}});
  check_vectors("e4m3fnuz", nearest_even, kIeee,
                {{below(248), 0x7f}, {248, 0x80}, {-248, 0x80}, {-0.0, 0x00}, {-0x1p-12, 0x00}, {1, 0x40}});
  check_vectors("e5m2fnuz", nearest_even, kIeee, {{-0.0, 0x00}, {-0x1p-19, 0x00}, {1, 0x40}, {61440, 0x80}});
  check_vectors("e2m1fn", nearest_even, kIeee,
                {{.25, 0}, {.75, 2}, {1.25, 2}, {1.75, 4}, {2.5, 4}, {3.5, 6}, {5, 6}, {above(5), 7}});
  check_vectors("e2m3fn", nearest_even, kIeee, {{.0625, 0x00}, {.9375, 0x08}, {7.75, 0x1f}});
  check_vectors("e3m2fn", nearest_even, kIeee, {{.03125, 0x00}, {22, 0x1e}, {30, 0x1f}});
  check_vectors("fp16", nearest_even, kIeee,
                {{below(65520), 0x7bff}, {65520, 0x7c00}, {0x1p-25, 0x0000}, {2049, 0x6800}, {2051, 0x6802}});
  check_vectors("bf16", nearest_even, kIeee, {{257, 0x4380}, {259, 0x4382}});
  // the values that those codes of e2m1 are
  const Format e2m1 = format("e2m1");
  for (const auto& [code, value] : {std::pair(0U, 0.0), {2U, 1.0}, {4U, 2.0}, {6U, 4.0}, {7U, 6.0}})
    CHECK(e2m1.decode(code) == value);
}

TEST_CASE("vectors, toward zero: what truncation brings below the limit does not overflow, the rest does") {
  check_vectors("e4m3fn", toward_zero, kMlDtypes, {{below(480), 0x7e}, {480, 0x7f}});
  check_vectors("e5m2", toward_zero, kMlDtypes, {{61440, 0x7b}, {below(65536), 0x7b}, {65536, 0x7c}});
  // IEEE 754, 7.4, as CUDA's __float2half_rz and gfloat: directed rounding gives Inf only where it points there
  check_vectors("fp16", toward_zero, kIeee, {{65536, 0x7bff}, {-65536, 0xfbff}, {1e30, 0x7bff}, {kInf, 0x7c00}});
  check_vectors("fp16", up, kIeee, {{65505, 0x7c00}, {-65536, 0xfbff}, {-1e30, 0xfbff}, {-kInf, 0xfc00}});
  check_vectors("fp16", down, kIeee, {{-65505, 0xfc00}, {65536, 0x7bff}, {1e30, 0x7bff}, {kInf, 0x7c00}});
  check_vectors("fp16", to_odd, kIeee, {{65536, 0x7bff}, {-1e30, 0xfbff}});
  check_vectors("e4m3fn", toward_zero, kIeee, {{480, 0x7e}, {-1e6, 0xfe}, {kInf, 0x7f}});
  check_vectors("e4m3fn", up, kIeee, {{449, 0x7f}, {-1e6, 0xfe}});
  check_vectors("e4m3fn", down, kIeee, {{-449, 0xff}, {1e6, 0x7e}});
  check_vectors("e4m3fn", to_odd, kIeee, {{480, 0x7f}});  // 7E is even
  check_vectors("e4m3fn", toward_zero, kSaturate, {{480, 0x7e}});
}

TEST_CASE("vectors of e8m0: ties go up, neither zero nor negative numbers are in it") {
  check_vectors("e8m0", nearest_even, kIeee,
                {{1.5, 0x80},
                 {3, 0x81},
                 {6, 0x82},
                 {below(1.5), 0x7f},
                 {0, 0xff},
                 {-0.0, 0xff},
                 {-1, 0xff},
                 {kInf, 0xff},
                 {0x1.8p127, 0xff},
                 {kNan, 0xff},
                 {0x1p-149, 0x00},
                 {0x1p-127, 0x00},
                 {0x1.8p-127, 0x01}});
  // ml_dtypes; the CUDA header makes 7F of a saturated -1
  check_vectors("e8m0", nearest_even, kSaturate,
                {{0, 0x00}, {-1, 0x00}, {kInf, 0xfe}, {0x1.8p127, 0xfe}, {kNan, 0xff}});
  check_vectors("e8m0", toward_zero, kIeee, {{1.5, 0x7f}, {below(2), 0x7f}, {0x1.FFp127, 0xfe}});
  check_vectors("e8m0", up, kIeee, {{above(1), 0x80}, {1, 0x7f}, {above(0x1p127), 0xff}});
}

TEST_CASE("where implementations disagree the policy tells whose way it is") {
  // Inf: CUDA's satfinite gives the largest value; ml_dtypes after a clamp keeps Inf, or NaN where there is no Inf
  check_vectors("e4m3fn", nearest_even, kSaturate, {{kInf, 0x7e}, {-kInf, 0xfe}});
  check_vectors("e4m3fn", nearest_even, kFinite, {{kInf, 0x7f}, {-kInf, 0xff}, {480, 0x7e}});
  check_vectors("e5m2", nearest_even, kSaturate, {{kInf, 0x7b}, {-kInf, 0xfb}});
  check_vectors("e5m2", nearest_even, kFinite, {{kInf, 0x7c}, {-kInf, 0xfc}, {61440, 0x7b}});
  check_vectors("e4m3fnuz", nearest_even, kFinite, {{kInf, 0x80}, {-kInf, 0x80}, {248, 0x7f}});
  // NaN: ml_dtypes' is quiet, CUDA's all ones
  check_vectors("e5m2", nearest_even, kIeee, {{kNan, 0x7e}});
  check_vectors("e5m2", nearest_even, kSaturate, {{kNan, 0x7f}});
  check_vectors("e4m3fn", nearest_even, kSaturate, {{kNan, 0x7f}});
  check_vectors("e4m3fnuz", nearest_even, kSaturate, {{kNan, 0x80}, {-kNan, 0x80}});
  // NaN where there is none: ml_dtypes -0, CUDA the largest
  for (const double nan : {kNan, -kNan}) {
    check_vectors("e2m1", nearest_even, kIeee, {{nan, 0x8}});
    check_vectors("e2m3", nearest_even, kIeee, {{nan, 0x20}});
    check_vectors("e3m2", nearest_even, kFinite, {{nan, 0x20}});
    check_vectors("e2m1", nearest_even, kSaturate, {{nan, 0x7}});
    check_vectors("e2m3", nearest_even, kSaturate, {{nan, 0x1f}});
    check_vectors("e3m2", nearest_even, kSaturate, {{nan, 0x1f}});
  }
}

TEST_CASE("the other modes at the same numbers") {
  check_vectors("e4m3fn", nearest_away, kIeee, {{17, 0x59}, {19, 0x5a}, {464, 0x7f}, {below(464), 0x7e}, {0x1p-10, 1}});
  check_vectors("e4m3fn", up, kIeee, {{16.001, 0x59}, {-16.001, 0xd8}, {1e-30, 0x01}, {-1e-30, 0x80}, {448.5, 0x7f}});
  check_vectors("e4m3fn", down, kIeee, {{16.001, 0x58}, {-16.001, 0xd9}, {1e-30, 0x00}, {-1e-30, 0x81}, {479, 0x7e}});
  check_vectors("e4m3fn", to_odd, kIeee,
                {{16.001, 0x59}, {18.001, 0x59}, {17.999, 0x59}, {18, 0x59}, {1e-30, 0x01}, {16, 0x58}});
}

TEST_CASE("facts where others fail") {
  // QPyTorch rounds ties away (17 -> 18) and turns 3.0 in (8, 23) into -3.0
  CHECK(format("e4m3fn").decode(code("e4m3fn", 17)) == 16);
  for (const RoundingMode mode : {nearest_even, nearest_away, toward_zero, up, down, to_odd})
    CHECK(format("e8m23").decode(code("e8m23", 3.0, mode)) == 3.0F);
  // microxcaling's restoring of NaN never fires
  for (const NamedFormat& n : named_formats()) {
    if (n.format.nan == NanEncoding::none) continue;
    for (const Overflow overflow : {kIeee, kSaturate, kFinite})
      CHECK(std::isnan(n.format.decode(code(n.name, kNan, nearest_even, overflow))));
  }
  // by way of bf16 one rounds twice
  CHECK(format("e4m3fn").decode(code("e4m3fn", 1.31640625)) == 1.375);
  CHECK(format("e4m3fn").decode(code("e4m3fn", format("bf16").decode(code("bf16", 1.31640625)))) == 1.25);
  // and by way of f32: a double just above a tie
  const double x = 1 + 0x1p-11 + 0x1p-40;
  const Rounder half{format("fp16"), {}, kIeee};
  CHECK(reference::code_at(half.format, reference::encode<double>(half, {x}), 0) == 0x3c01);
  CHECK(code("fp16", static_cast<float>(x)) == 0x3c00);
}

TEST_CASE("what is exact in bf16") {
  // every value with at most 8 significant bits and 8 exponent bits; fp16 has more
  for (const NamedFormat& n : named_formats()) {
    if (n.format.bits() > 16) continue;
    int inexact = 0;
    for (std::uint32_t c = 0; c < 1u << n.format.bits(); ++c) {
      const float value = n.format.decode(c);
      const reference::Result r = reference::round<nearest_even>(format("bf16"), kIeee, value);
      inexact += reference::value_bits(value) != reference::value_bits(format("bf16"), r.code);
    }
    CHECK_MESSAGE((inexact == 0) == (n.format.mantissa_bits <= 7), n.name);
  }
}

TEST_CASE("-0 counts as a zero, and the exponents have bins") {
  // Transformer Engine's underflow count went negative because -0 was no zero
  const std::vector<float> x = {0.0F,
                                -0.0F,
                                0x1p-11F,
                                -0x1p-11F,
                                0x1p-9F,
                                1,
                                -1.5F,
                                500,
                                -1e30F,
                                std::numeric_limits<float>::quiet_NaN(),
                                -std::numeric_limits<float>::infinity()};
  const Tensor t = from_data(x, {11});
  CastCounts counts;
  ExponentHistogram exponents;
  const Tensor y = fake_quantize(t, format("e4m3fn"), {}, kSaturate, {}, {&counts, &exponents});
  CHECK(reference::as_vector(counts) == std::vector<std::uint64_t>{11, 2, 2, 1, 2, 1, 1});
  const auto bin = [&](int exponent) {
    const int at = exponent + 127;
    return exponents.bins[static_cast<std::size_t>(at)];
  };
  CHECK(bin(-11) == 2);
  CHECK(bin(-9) == 1);
  CHECK(bin(0) == 2);
  CHECK(bin(8) == 1);
  CHECK(bin(99) == 1);
  CHECK(exponents.bins[255] == 2);
  CHECK(exponents.bins[0] == 0);
  std::uint64_t sum = 0;
  for (const std::uint64_t b : exponents.bins) sum += b;
  CHECK(sum == 9);  // the two zeros have no exponent
  // subnormal floats are not zeros
  exponents = {};
  const std::vector<float> tiny = {0x1p-149F, -0x1p-127F, 0, -0.0F, 0x1p-126F};
  exponents.add(tiny.data(), 5);
  CHECK(exponents.bins[0] == 2);
  CHECK(exponents.bins[1] == 1);
}

TEST_CASE("ties without mantissa bits go to the even code, as in P3109") {
  check_vectors("binary8p1", nearest_even, kIeee,
                {{1, 0x40},
                 {1.5, 0x40},
                 {3, 0x42},
                 {6, 0x42},
                 {12, 0x44},
                 {0x1p-64, 0x00},
                 {0x1.8p-63, 0x02},
                 {above(1.5), 0x41},
                 {below(3), 0x41},
                 {-1.5, 0xc0},
                 {-6, 0xc2},
                 {0x1.8p62, 0x7e},
                 {above(0x1.8p62), 0x7f}});
  check_vectors("binary8p1f", nearest_even, kIeee, {{0x1.8p62, 0x7e}, {0x1.8p63, 0x80}, {below(0x1.8p63), 0x7f}});
  check_vectors("e4m0", nearest_even, kIeee, {{1, 7}, {1.5, 8}, {3, 8}, {6, 10}, {0x1p-7, 0}, {0x1.8p-6, 2}});
  check_vectors("e8m0", nearest_away, kIeee, {{1.5, 0x80}, {3, 0x81}});
  check_vectors("binary8p1", to_odd, kIeee, {{1.25, 0x41}, {2.5, 0x41}, {0x1p-80, 0x01}, {-1.25, 0xc1}});
}
