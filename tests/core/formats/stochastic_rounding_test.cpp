#include <doctest/doctest.h>
#include <gradual/core/formats/convert.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/philox.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "format_reference.h"

using namespace gradual;
using reference::format;

namespace {

constexpr std::uint64_t kSeed = 11;
constexpr std::uint64_t kStream = 4;
constexpr DType kStochastic[] = {DType::f16, DType::bf16, DType::f8e5m2};

std::vector<std::uint32_t> round(DType dtype, const std::vector<float>& values, std::uint64_t first = 0,
                                 CastCounts* counts = nullptr) {
  std::vector<std::uint16_t> out(values.size() + 1);
  store_stochastic(dtype, values.data(), out.data(), static_cast<std::int64_t>(values.size()), kSeed, kStream, first,
                   counts);
  return reference::codes_of(dtype, out.data(), values.size());
}

}  // namespace

TEST_CASE("stochastic rounding never moves a value that the format holds") {
  for (const DType dtype : kStochastic) {
    const auto codes = reference::all_codes(dtype);
    const auto rounded = round(dtype, reference::decode(dtype, codes));
    int failures = 0;
    for (const std::uint32_t code : codes) {
      failures += format(dtype).is_nan(code) ? !format(dtype).is_nan(rounded[code]) : rounded[code] != code;
    }
    CHECK(failures == 0);
  }
}

TEST_CASE("stochastic rounding goes up where the random word exceeds the distance") {
  // One word decides each element: up when word / 2^32 >= 1 - fraction, the fraction in units of the spacing.
  constexpr std::size_t kCount = 1 << 19;
  std::vector<std::uint32_t> words(kCount);
  philox_fill(99, 0, 0, words.data(), kCount);
  for (const DType dtype : kStochastic) {
    CAPTURE(std::string(to_string(dtype)));
    const auto& values = format(dtype).values;
    std::vector<float> floats(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      // Between two neighbours, subnormal ones in every fourth case.
      const std::size_t range = i % 4 == 0 ? std::size_t{1} << format(dtype).mantissa_bits : values.size() - 1;
      const std::size_t code = words[i] % range;
      const double fraction = (words[i] >> 12) * 0x1p-20;
      floats[i] = static_cast<float>(values[code] + fraction * (values[code + 1] - values[code]));
      if (i % 2 == 1) floats[i] = -floats[i];
    }
    const auto rounded = round(dtype, floats, 1000);
    int failures = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      const double size = std::abs(floats[i]);
      const auto above = std::upper_bound(values.begin(), values.end(), size);
      const auto below = static_cast<std::uint32_t>(above - values.begin()) - 1;
      const double fraction = above == values.end() ? 0 : (size - values[below]) / (*above - values[below]);
      const double word = philox_word(kSeed, kStream, 1000 + i) * 0x1p-32;
      const std::uint32_t expected = below + (std::floor(fraction * 0x1p32) * 0x1p-32 + word >= 1 ? 1 : 0);
      failures += rounded[i] != (expected | (i % 2 == 1 ? format(dtype).sign_bit() : 0));
    }
    CHECK(failures == 0);
  }
  // Far below the smallest value, where the discarded part is longer than the random word.
  const auto rounded = round(DType::f16, std::vector<float>(1 << 20, 0x1p-42f));
  int ups = 0;
  int failures = 0;
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    const bool up = philox_word(kSeed, kStream, i) >= 0xffffc000u;
    failures += rounded[i] != (up ? 1 : 0);
    ups += up ? 1 : 0;
  }
  CHECK(failures == 0);
  CHECK(ups > 0);
}

TEST_CASE("stochastic rounding is unbiased") {
  constexpr std::size_t kDraws = 1 << 20;
  struct Row {
    DType dtype;
    float value;
    double below, above;
  };
  const Row rows[] = {{DType::bf16, 1.0f + 0x1p-15f, 1, 1 + 0x1p-7},  // close to 1: a distance of 1/256
                      {DType::bf16, 1.0f + 0x1p-23f, 1, 1 + 0x1p-7},  // one bit of the float
                      {DType::bf16, -3.013f, -3.015625, -3},
                      {DType::bf16, 0x1.4p-134f, 0, 0x1p-133},
                      {DType::f16, 1.0f + 0x1p-13f, 1, 1 + 0x1p-10},
                      {DType::f16, 0x1p-27f, 0, 0x1p-24},  // nearest-even would lose it always
                      {DType::f16, -0x1.8p-16f - 0x1p-26f, -0x1.8p-16 - 0x1p-24, -0x1.8p-16},
                      {DType::f8e5m2, 4.3f, 4, 5}};
  for (const Row& row : rows) {
    CAPTURE(std::string(to_string(row.dtype)));
    CAPTURE(row.value);
    const auto codes = round(row.dtype, std::vector<float>(kDraws, row.value));
    std::size_t ups = 0;
    std::size_t downs = 0;
    for (const std::uint32_t code : codes) {
      const double result = format(row.dtype).decode(code);
      ups += result == row.above;
      downs += result == row.below;
    }
    CHECK(ups + downs == kDraws);
    const double probability = (static_cast<double>(row.value) - row.below) / (row.above - row.below);
    const double deviation = std::sqrt(probability * (1 - probability) / kDraws);
    CHECK(std::abs(static_cast<double>(ups) / kDraws - probability) < 5 * deviation);
  }
}

TEST_CASE("stochastic rounding of an element depends on its place, not on the array's split") {
  std::vector<float> values(3001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + static_cast<float>(i) * 0x1p-18f;
  const auto whole = round(DType::bf16, values, 5);
  for (const std::size_t cut : {1, 7, 1024, 2999}) {
    auto left = round(DType::bf16, {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(cut)}, 5);
    const auto right = round(DType::bf16, {values.begin() + static_cast<std::ptrdiff_t>(cut), values.end()}, 5 + cut);
    left.insert(left.end(), right.begin(), right.end());
    CHECK(left == whole);
  }
  CHECK(round(DType::bf16, values, 6) != whole);
}

TEST_CASE("stochastic rounding at the ends of the range, and its counts") {
  const float nan = std::nanf("");
  CastCounts counts;
  const auto codes = round(DType::f16, {0.0f, -0.0f, 1e-30f, 65536.0f, -1e30f, nan, INFINITY, 0x1p-20f}, 0, &counts);
  CHECK(codes == std::vector<std::uint32_t>{0, 0x8000, 0, 0x7c00, 0xfc00, 0x7e00, 0x7c00, 0x0010});
  CHECK(counts.elements == 8);
  CHECK(counts.zeros == 2);
  CHECK(counts.underflow == 1);
  CHECK(counts.subnormal == 1);
  CHECK(counts.overflow == 2);
  CHECK(counts.nan == 1);
  CHECK(counts.inf == 1);
  // Above the largest value the upper neighbour is Inf.
  for (const std::uint32_t code : round(DType::bf16, std::vector<float>(100, 0x1.FEFp127f))) {
    CHECK((code == 0x7f7f || code == 0x7f80));
  }
  float value = 1;
  CHECK_THROWS_WITH_AS(store_stochastic(DType::f64, &value, &value, 1, 0, 0, 0),
                       "format_of: f64 has no format here; f32, f16, bf16, f8e4m3fn and f8e5m2 have", Error);
}
