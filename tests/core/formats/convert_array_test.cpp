#include <doctest/doctest.h>
#include <gradual/core/formats/convert.h>
#include <gradual/core/formats/float_types.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/philox.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "format_reference.h"

using namespace gradual;
using reference::kNarrow;

namespace {

using enum DType;

constexpr DType kAll[] = {f64, f32, f16, bf16, f8e4m3fn, f8e5m2, i64, i32, u8, bool_};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Elements of any dtype as bytes, and back as doubles.
std::vector<std::uint8_t> make(DType dtype, const std::vector<double>& values) {
  std::vector<std::uint8_t> bytes(values.size() * size_of(dtype));
  cast_and_store(dtype, values.data(), bytes.data(), 1, static_cast<std::int64_t>(values.size()));
  return bytes;
}

std::vector<double> read(DType dtype, const std::vector<std::uint8_t>& bytes) {
  std::vector<double> values(bytes.size() / size_of(dtype));
  fetch_and_cast(dtype, bytes.data(), 1, values.data(), static_cast<std::int64_t>(values.size()));
  return values;
}

CastCounts count(DType src, DType dst, const std::vector<double>& values) {
  const auto from = make(src, values);
  std::vector<std::uint8_t> to(values.size() * size_of(dst));
  CastCounts counts;
  convert(src, from.data(), dst, to.data(), static_cast<std::int64_t>(values.size()), &counts);
  return counts;
}

using Seven = std::array<std::uint64_t, 7>;

// elements, zeros, underflow, subnormal, overflow, nan, inf
Seven as_array(const CastCounts& c) {
  return {c.elements, c.zeros, c.underflow, c.subnormal, c.overflow, c.nan, c.inf};
}

}  // namespace

TEST_CASE("loads and stores with strides") {
  // 2,500 elements: more than two blocks. Small integers, which every dtype but bool holds.
  constexpr std::int64_t kCount = 2500;
  std::vector<double> values(3 * kCount);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 7);
  for (const DType dtype : kAll) {
    CAPTURE(std::string(to_string(dtype)));
    const auto bytes = make(dtype, values);
    const auto expected = [&](std::int64_t i) {
      const double value = values[static_cast<std::size_t>(i)];
      return dtype == bool_ ? static_cast<double>(value != 0) : value;
    };
    for (const std::int64_t stride : {-3, -1, 0, 1, 2, 3}) {
      CAPTURE(stride);
      const std::int64_t start = stride < 0 ? -stride * (kCount - 1) : 0;
      const std::uint8_t* p = bytes.data() + start * static_cast<std::int64_t>(size_of(dtype));
      std::vector<float> floats(kCount + 1, -5);
      std::vector<double> doubles(kCount + 1, -5);
      std::vector<std::int64_t> integers(kCount + 1, -5);
      fetch_and_cast(dtype, p, stride, floats.data(), kCount);
      fetch_and_cast(dtype, p, stride, doubles.data(), kCount);
      fetch_and_cast(dtype, p, stride, integers.data(), kCount);
      int failures = 0;
      for (std::int64_t i = 0; i < kCount; ++i) {
        const double want = expected(start + i * stride);
        const auto at = static_cast<std::size_t>(i);
        failures += floats[at] != want || doubles[at] != want || static_cast<double>(integers[at]) != want;
      }
      CHECK(failures == 0);
      CHECK(floats.back() == -5);
      CHECK(doubles.back() == -5);
      CHECK(integers.back() == -5);
      if (stride == 0) continue;

      // Back to where they came from; what lies between stays.
      auto untouched = std::vector<std::uint8_t>(bytes.size(), 0x11);
      auto written = untouched;
      cast_and_store(dtype, floats.data(), written.data() + (p - bytes.data()), stride, kCount);
      for (std::size_t i = 0; i < written.size(); ++i) {
        const auto element = static_cast<std::int64_t>(i / size_of(dtype)) - start;
        const bool hit = element % stride == 0 && element / stride >= 0 && element / stride < kCount;
        failures += written[i] != (hit ? bytes[i] : 0x11);
      }
      auto from_double = untouched;
      auto from_i64 = untouched;
      cast_and_store(dtype, doubles.data(), from_double.data() + (p - bytes.data()), stride, kCount);
      cast_and_store(dtype, integers.data(), from_i64.data() + (p - bytes.data()), stride, kCount);
      CHECK(failures == 0);
      CHECK(from_double == written);
      CHECK(from_i64 == written);
    }
  }
}

TEST_CASE("empty arrays touch nothing") {
  CastCounts counts;
  for (const DType src : kAll) {
    fetch_and_cast<float>(src, nullptr, 0, nullptr, 0);
    fetch_and_cast<double>(src, nullptr, 1, nullptr, 0);
    fetch_and_cast<std::int64_t>(src, nullptr, 2, nullptr, 0);
    for (const DType dst : kAll) convert(src, nullptr, dst, nullptr, 0, &counts);
    cast_and_store<float>(src, nullptr, nullptr, 1, 0, &counts);
  }
  CHECK(as_array(counts) == Seven{});
}

TEST_CASE("every dtype converts to every other") {
  // Exact in every dtype but bool; then values that are rounded, cut or saturated.
  const std::vector<double> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 96, 100.5, 224.25, 0.5, 3.75};
  for (const DType src : kAll) {
    for (const DType dst : kAll) {
      CAPTURE(std::string(to_string(src)) + " to " + std::string(to_string(dst)));
      const auto from = make(src, values);
      std::vector<std::uint8_t> to(values.size() * size_of(dst));
      convert(src, from.data(), dst, to.data(), static_cast<std::int64_t>(values.size()));
      CHECK(to == make(dst, read(src, from)));
    }
  }
}

TEST_CASE("equal dtypes copy the bits") {
  const std::vector<std::uint16_t> half = {0x7c01, 0xfc01, 0x7e00, 0x0001};  // signalling NaNs among them
  for (const DType dtype : {f16, bf16}) {
    std::vector<std::uint16_t> out(half.size());
    CastCounts counts;
    convert(dtype, half.data(), dtype, out.data(), 4, &counts);
    CHECK(out == half);
    CHECK(counts.elements == 4);
    CHECK(counts.subnormal == 1);
  }
  const std::vector<std::uint8_t> bools = {0, 1, 2, 255};
  std::vector<std::uint8_t> out(4);
  convert(bool_, bools.data(), bool_, out.data(), 4);
  CHECK(out == bools);
  convert(bool_, bools.data(), u8, out.data(), 4);
  CHECK(out == std::vector<std::uint8_t>{0, 1, 1, 1});
}

TEST_CASE("f16 and bf16 into each other round once by way of float") {
  for (const DType src : {f16, bf16}) {
    const DType dst = src == f16 ? bf16 : f16;
    const auto codes = reference::all_codes(src);
    const std::vector<float> values = reference::decode(src, codes);
    const std::vector<std::uint16_t> from(codes.begin(), codes.end());
    reference::for_each_isa([&](CpuIsa) {
      std::vector<std::uint16_t> to(from.size());
      convert(src, from.data(), dst, to.data(), static_cast<std::int64_t>(from.size()));
      CHECK(reference::codes_of(dst, to.data(), to.size()) == reference::encode(dst, values));
    });
  }
}

TEST_CASE("floats become integers towards zero, saturate, and NaN gives 0") {
  const std::vector<double> values = {
      0.0,  -0.0,  0.9,  -0.9,  1.5,  -1.5,         254.9,        255.0,         256.0,         -1.0,   3e9,    -3e9,
      1e30, -1e30, kInf, -kInf, kNaN, 2147483647.0, 2147483648.0, -2147483648.0, -2147483649.0, 0x1p63, -0x1p63};
  constexpr std::int64_t kMax64 = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin64 = std::numeric_limits<std::int64_t>::min();
  constexpr std::int32_t kMax32 = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kMin32 = std::numeric_limits<std::int32_t>::min();
  const std::vector<std::uint8_t> bytes = {0,   0, 0,   0, 1, 0,   254, 255, 255, 0,   255, 0,
                                           255, 0, 255, 0, 0, 255, 255, 0,   0,   255, 0};
  const std::vector<std::int32_t> ints = {0,   0,      0,      0,      1,      -1,     254,    255,
                                          256, -1,     kMax32, kMin32, kMax32, kMin32, kMax32, kMin32,
                                          0,   kMax32, kMax32, kMin32, kMin32, kMax32, kMin32};
  const std::vector<std::int64_t> longs = {0,          0,           0,           0,      1,          -1,
                                           254,        255,         256,         -1,     3000000000, -3000000000,
                                           kMax64,     kMin64,      kMax64,      kMin64, 0,          2147483647,
                                           2147483648, -2147483648, -2147483649, kMax64, kMin64};
  const std::vector<std::uint8_t> bools = {0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<std::uint8_t> out8(values.size());
  std::vector<std::int32_t> out32(values.size());
  std::vector<std::int64_t> out64(values.size());
  cast_and_store(u8, values.data(), out8.data(), 1, n);
  cast_and_store(i32, values.data(), out32.data(), 1, n);
  cast_and_store(i64, values.data(), out64.data(), 1, n);
  CHECK(out8 == bytes);
  CHECK(out32 == ints);
  CHECK(out64 == longs);
  cast_and_store(bool_, values.data(), out8.data(), 1, n);
  CHECK(out8 == bools);
  fetch_and_cast(f64, values.data(), 1, out64.data(), n);
  CHECK(out64 == longs);

  // From float: 2147483647 rounds to 2^31, and 254.9 is not far off.
  const std::vector<float> floats(values.begin(), values.end());
  cast_and_store(u8, floats.data(), out8.data(), 1, n);
  CHECK(out8 == bytes);
  cast_and_store(i32, floats.data(), out32.data(), 1, n);
  CHECK(out32 == ints);

  // Integers into narrower ones saturate as well.
  const std::vector<std::int64_t> wide = {-1, 0, 255, 256, kMax64, kMin64};
  cast_and_store(u8, wide.data(), out8.data(), 1, 6);
  CHECK(std::vector<std::uint8_t>(out8.begin(), out8.begin() + 6) == std::vector<std::uint8_t>{0, 0, 255, 255, 255, 0});
  cast_and_store(i32, wide.data(), out32.data(), 1, 6);
  CHECK(std::vector<std::int32_t>(out32.begin(), out32.begin() + 6) ==
        std::vector<std::int32_t>{-1, 0, 255, 256, kMax32, kMin32});
}

TEST_CASE("integers keep all their bits on the way to integers and f64") {
  const std::vector<std::int64_t> integers = {(1ll << 53) + 1, std::numeric_limits<std::int64_t>::max(), -7};
  std::vector<std::int64_t> out(3);
  convert(i64, integers.data(), i64, out.data(), 3);
  CHECK(out == integers);
  fetch_and_cast(i64, integers.data(), 1, out.data(), 3);
  CHECK(out == integers);
  const std::vector<std::int32_t> small = {std::numeric_limits<std::int32_t>::max(), -16777217, 3};
  std::vector<double> doubles(3);
  convert(i32, small.data(), f64, doubles.data(), 3);
  CHECK(doubles == std::vector<double>{2147483647.0, -16777217.0, 3.0});
}

TEST_CASE("counts of a narrowing store") {
  const double half_of_smallest = 0x1p-25;
  const double just_below_normal = 0x1p-14 - 0x1p-25;  // a tie that rounds to the smallest normal value
  // Signed zeros; two that vanish; two subnormals; three normals; overflow of both signs; NaN; infinities.
  const std::vector<double> values = {0.0,
                                      -0.0,
                                      half_of_smallest,
                                      -1e-30,
                                      std::nextafter(half_of_smallest, 1.0),
                                      std::nextafter(just_below_normal, 0.0),
                                      just_below_normal,
                                      1.0,
                                      std::nextafter(65520.0, 0.0),
                                      65520.0,
                                      -1e30,
                                      kNaN,
                                      kInf,
                                      -kInf};
  CHECK(as_array(count(f64, f16, values)) == Seven{14, 2, 2, 2, 2, 1, 2});
  // From float the same, with the float's own neighbours.
  std::vector<double> floats(values.size());
  std::transform(values.begin(), values.end(), floats.begin(), [](double x) { return static_cast<float>(x); });
  floats[4] = std::nextafter(static_cast<float>(half_of_smallest), 1.0f);
  floats[5] = std::nextafter(static_cast<float>(just_below_normal), 0.0f);
  floats[8] = std::nextafter(65520.0f, 0.0f);
  CHECK(as_array(count(f32, f16, floats)) == Seven{14, 2, 2, 2, 2, 1, 2});

  // The limits of the other formats: vanishes | subnormal | normal | overflows.
  CHECK(as_array(count(f32, f8e4m3fn, {0x1p-10, 0x1.1p-10, 0x1.Cp-7, 0x1.Ep-7, 464, 465, kInf, kNaN})) ==
        Seven{8, 0, 1, 2, 1, 1, 1});
  CHECK(as_array(count(f32, f8e5m2, {-0x1p-17, 0x1.1p-17, 0x1.Bp-15, 0x1.Cp-15, 61439, 61440})) ==
        Seven{6, 0, 1, 2, 1, 0, 0});
  CHECK(as_array(count(f32, bf16, {0x1p-134, 0x1.1p-134, 0x1.FCp-127, 0x1p-126, 0x1.FEp127, 0x1.FFp127})) ==
        Seven{6, 0, 1, 2, 1, 0, 0});
  CHECK(as_array(count(f64, f32, {0x1p-150, 0x1.1p-150, 0x1p-126, 0x1.FFFFFEp127, 0x1.FFFFFFp127, -0.0})) ==
        Seven{6, 1, 1, 1, 1, 0, 0});
  CHECK(as_array(count(f64, f64, {5e-324, 1.0, 0.0, kInf})) == Seven{4, 1, 0, 1, 0, 0, 1});
  CHECK(as_array(count(f16, bf16, {0x1p-24, 65504.0})) == Seven{2, 0, 0, 0, 0, 0, 0});
  CHECK(as_array(count(bf16, f16, {0x1p-133, 0x1p127, -0.0, kNaN})) == Seven{4, 1, 1, 0, 1, 1, 0});
  CHECK(as_array(count(i64, f16, {0, 1, 65519, 65520, -70000})) == Seven{5, 1, 0, 0, 2, 0, 0});
  CHECK(as_array(count(i32, bf16, {0, 2147483647.0})) == Seven{2, 1, 0, 0, 0, 0, 0});
  // To integers and bool.
  CHECK(as_array(count(f32, u8, {0, -0.0, 0.5, -0.5, 255.5, 256, -1, kNaN, kInf})) == Seven{9, 2, 2, 0, 2, 1, 1});
  CHECK(as_array(count(f64, i64, {0x1p63, -0x1p63, -0x1.8p63})) == Seven{3, 0, 0, 0, 2, 0, 0});
  CHECK(as_array(count(i64, u8, {255, 256, -1, 0})) == Seven{4, 1, 0, 0, 2, 0, 0});
  CHECK(as_array(count(f32, bool_, {0, 0.25, kNaN, kInf})) == Seven{4, 1, 0, 0, 0, 1, 1});
  CHECK(as_array(count(i64, bool_, {0, 300})) == Seven{2, 1, 0, 0, 0, 0, 0});
}

TEST_CASE("counts agree with the results, element by element") {
  constexpr std::size_t kCount = 200000;
  std::vector<std::uint32_t> words(kCount);
  philox_fill(3, 1, 0, words.data(), kCount);
  std::vector<float> floats(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    floats[i] = std::bit_cast<float>(i % 9 == 0 ? words[i] & 0x80000000 : words[i]);
  for (const DType dtype : kNarrow) {
    CAPTURE(std::string(to_string(dtype)));
    const auto codes = reference::encode(dtype, floats);
    const auto& format = reference::format(dtype);
    CastCounts want{.elements = kCount};
    for (std::size_t i = 0; i < kCount; ++i) {
      const double result = std::abs(format.decode(codes[i]));
      want.zeros += floats[i] == 0;
      want.underflow += floats[i] != 0 && result == 0;
      want.subnormal += result > 0 && result < float_info(dtype).min_normal;
      want.overflow += std::isfinite(floats[i]) && !std::isfinite(result);
      want.nan += std::isnan(floats[i]);
      want.inf += std::isinf(floats[i]);
    }
    CastCounts contiguous, strided;
    std::vector<std::uint16_t> out(2 * kCount);
    cast_and_store(dtype, floats.data(), out.data(), 1, kCount, &contiguous);
    cast_and_store(dtype, floats.data(), out.data(), 2, kCount, &strided);
    CHECK(as_array(contiguous) == as_array(want));
    CHECK(as_array(strided) == as_array(want));
    CHECK(reference::codes_of(dtype, out.data(), 1)[0] == codes[0]);
  }
}

TEST_CASE("counts add up") {
  CastCounts sum{1, 2, 3, 4, 5, 6, 7};
  sum += {10, 20, 30, 40, 50, 60, 70};
  CHECK(as_array(sum) == Seven{11, 22, 33, 44, 55, 66, 77});
}
