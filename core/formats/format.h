// Scalar number formats as data: every format of the OCP, ml_dtypes and MX specifications, and any eXmY up to f32.
//
//   const Format f = format("e4m3fn");        // or Format{.exponent_bits = 4, .mantissa_bits = 2, .bias = 7, ...}
//   f.max();                                  // 448
//   f.decode(0x7e);                           // 448
//
// A code is sign, exponent and mantissa from the high bit down. Codes of one sign are ordered as their values are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"

namespace gradual {

// Which codes are NaN.
enum class NanEncoding : std::uint8_t {
  none,
  ieee,          // highest exponent, mantissa not 0 (mantissa 0 is Inf)
  all_ones,      // only the code of ones below the sign, the names' "fn"
  negative_zero  // only the code of -0, the names' "fnuz"
};
std::string_view to_string(NanEncoding encoding);  // "all-ones"

struct Format {
  bool is_signed = true;
  int exponent_bits = 0;  // 1 to 8
  int mantissa_bits = 0;  // 0 to 23, without the hidden bit
  int bias = 0;           // value of a normal code: (1 + mantissa / 2^mantissa_bits) * 2^(exponent - bias)
  bool has_inf = false;
  NanEncoding nan = NanEncoding::none;
  bool has_negative_zero = true;
  bool subnormals = true;  // false: results below min_normal() become zero once they are rounded
  bool has_zero = true;    // false: code 0 is 2^-bias, as in e8m0fnu

  // The IEEE form of eXmY: bias 2^(X-1) - 1, Inf, NaN, -0 and subnormals. Without mantissa bits there is no Inf, and
  // the highest code is NaN. Error where X is not 1 to 8 or Y not 0 to 23.
  static Format ieee(int exponent_bits, int mantissa_bits);

  int bits() const { return static_cast<int>(is_signed) + exponent_bits + mantissa_bits; }
  int storage_bits() const;  // of one code in memory: 4, 6, 8, 16 or 32
  std::uint32_t sign_bit() const { return is_signed ? 1u << (exponent_bits + mantissa_bits) : 0; }
  std::uint32_t max_code() const;                 // of the largest finite value
  std::optional<std::uint32_t> inf_code() const;  // of the positive one
  std::optional<std::uint32_t> nan_code() const;  // the quiet one without a sign
  double max() const { return decode(max_code()); }
  double min_normal() const;
  double min_positive() const;  // the smallest subnormal value where there are any
  double epsilon() const;       // from 1 to the next value: 2^-mantissa_bits
  int max_exponent() const;     // floor(log2(max())); "emax" in the MX specification
  float decode(std::uint32_t code) const;

  bool operator==(const Format&) const = default;
};

// Error naming the field and what is allowed: every value must be exact in f32, the smallest normal one normal there.
void check_valid(const Format& format);

// By name: those of named_formats(), "e2m1", "e2m3" and "e3m2" for OCP's, or "eXmY" for Format::ieee(X, Y). Error listing
// what there is.
Format format(std::string_view name);
// The format's name, "eXmY" for the IEEE ones, else its fields.
std::string to_string(const Format& format);
struct NamedFormat {
  std::string_view name;
  Format format;
  std::string_view about;  // where it is from
};
const std::vector<NamedFormat>& named_formats();
// The format of a floating dtype of at most 32 bits. Error for any other.
Format format_of(DType dtype);
// The dtype that stores this format, if there is one.
std::optional<DType> dtype_of_format(const Format& format);

}  // namespace gradual
