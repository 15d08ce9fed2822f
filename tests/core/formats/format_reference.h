#pragma once

#include <gradual/core/formats/convert.h>
#include <gradual/core/formats/dtype.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/cpu_isas.h"

// The narrow formats a second time, from their definition and as slow as it is plain: a value is
// sign * mantissa * 2^exponent, and rounding is a search among all values.
namespace reference {

using gradual::DType;

inline constexpr std::array<DType, 4> kNarrow = {DType::f16, DType::bf16, DType::f8e4m3fn, DType::f8e5m2};

struct Format {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  bool has_inf;
  std::vector<double> values;     // finite, not negative; the index is the code
  std::vector<double> midpoints;  // [i] between values[i] and the next, which after the last would be finite too

  explicit Format(DType which) : dtype(which) {
    switch (which) {
      case DType::f16:
        exponent_bits = 5;
        mantissa_bits = 10;
        has_inf = true;
        break;
      case DType::bf16:
        exponent_bits = 8;
        mantissa_bits = 7;
        has_inf = true;
        break;
      case DType::f8e4m3fn:
        exponent_bits = 4;
        mantissa_bits = 3;
        has_inf = false;
        break;
      default:
        exponent_bits = 5;
        mantissa_bits = 2;
        has_inf = true;
        break;
    }
    const std::uint32_t count = has_inf ? inf_code() : sign_bit() - 1;
    for (std::uint32_t code = 0; code < count; ++code) values.push_back(magnitude(code));
    for (std::uint32_t code = 0; code < count; ++code) midpoints.push_back((magnitude(code) + magnitude(code + 1)) / 2);
  }

  std::uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  std::uint32_t inf_code() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  // What overflow gives; all codes beyond it (without the sign) are NaN.
  std::uint32_t overflow_code() const { return has_inf ? inf_code() : sign_bit() - 1; }
  // What the standard NaN gives.
  std::uint32_t nan_code() const { return has_inf ? inf_code() | 1u << (mantissa_bits - 1) : sign_bit() - 1; }
  bool is_nan(std::uint32_t code) const {
    const std::uint32_t unsigned_code = code & (sign_bit() - 1);
    return has_inf ? unsigned_code > inf_code() : unsigned_code == sign_bit() - 1;
  }

  // As if the highest exponent were one like any other.
  double magnitude(std::uint32_t code) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(code >> mantissa_bits);
    const double fraction = std::ldexp(code & ((1u << mantissa_bits) - 1), -mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  }

  double decode(std::uint32_t code) const {
    const std::uint32_t unsigned_code = code & (sign_bit() - 1);
    const double sign = (code & sign_bit()) != 0 ? -1.0 : 1.0;
    if (is_nan(code)) return std::numeric_limits<double>::quiet_NaN();
    if (has_inf && unsigned_code == inf_code()) return sign * std::numeric_limits<double>::infinity();
    return sign * magnitude(unsigned_code);
  }

  // Nearest, ties to the even code; NaN gives the standard one.
  std::uint32_t encode(double value) const {
    const std::uint32_t sign = std::signbit(value) ? sign_bit() : 0;
    if (std::isnan(value)) return sign | nan_code();
    const double size = std::abs(value);
    const auto above = std::lower_bound(midpoints.begin(), midpoints.end(), size);  // first midpoint >= size
    auto code = static_cast<std::uint32_t>(above - midpoints.begin());
    if (above != midpoints.end() && *above == size && code % 2 == 1) ++code;
    return sign | std::min(code, overflow_code());
  }
};

inline const Format& format(DType dtype) {
  static const std::array<Format, 4> formats = {Format(DType::f16), Format(DType::bf16), Format(DType::f8e4m3fn),
                                                Format(DType::f8e5m2)};
  return formats[static_cast<std::size_t>(dtype) - static_cast<std::size_t>(DType::f16)];
}

// Codes as the library converts arrays of float or double.
inline std::vector<std::uint32_t> codes_of(DType dtype, const void* bytes, std::size_t n) {
  std::vector<std::uint32_t> codes(n);
  for (std::size_t i = 0; i < n; ++i) {
    codes[i] = gradual::size_of(dtype) == 1 ? static_cast<const std::uint8_t*>(bytes)[i]
                                            : static_cast<const std::uint16_t*>(bytes)[i];
  }
  return codes;
}

inline std::vector<std::uint32_t> encode(DType dtype, const std::vector<float>& values) {
  std::vector<std::uint16_t> buffer(values.size() + 1);
  gradual::convert(DType::f32, values.data(), dtype, buffer.data(), static_cast<std::int64_t>(values.size()));
  return codes_of(dtype, buffer.data(), values.size());
}

inline std::vector<std::uint32_t> encode(DType dtype, const std::vector<double>& values) {
  std::vector<std::uint16_t> buffer(values.size() + 1);
  gradual::convert(DType::f64, values.data(), dtype, buffer.data(), static_cast<std::int64_t>(values.size()));
  return codes_of(dtype, buffer.data(), values.size());
}

inline std::vector<float> decode(DType dtype, const std::vector<std::uint32_t>& codes) {
  std::vector<std::uint16_t> words(codes.begin(), codes.end());
  std::vector<std::uint8_t> bytes(codes.size());
  std::transform(codes.begin(), codes.end(), bytes.begin(), [](auto code) { return static_cast<std::uint8_t>(code); });
  std::vector<float> out(codes.size());
  const void* in = gradual::size_of(dtype) == 1 ? static_cast<const void*>(bytes.data()) : words.data();
  gradual::convert(dtype, in, DType::f32, out.data(), static_cast<std::int64_t>(codes.size()));
  return out;
}

inline std::vector<std::uint32_t> all_codes(DType dtype) {
  std::vector<std::uint32_t> codes(2 * format(dtype).sign_bit());
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint32_t>(i);
  return codes;
}

}  // namespace reference
