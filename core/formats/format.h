// Scalar number formats as values: the formats of the OCP, ml_dtypes and MX specifications, and every eXmY up to f32.
//
//   const Format f = format("e4m3fn");        // or Format{.exponent_bits = 4, .mantissa_bits = 2, .bias = 7, ...}
//   f.max();                                  // 448
//   f.decode(0x7e);                           // 448
//
// A code holds the sign, the exponent and the mantissa, from the high bit down. Codes of one sign have the order of
// their values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"

namespace gradual {

// The names of an enumeration's values, in their order. Each enumeration with names specialises it.
template <class E> inline constexpr int kEnumNames = 0;
// The name of a value: to_string(NanEncoding::all_ones) is "all-ones".
template <class E>
  requires requires { kEnumNames<E>[0]; }
constexpr std::string_view to_string(E value) {
  return kEnumNames<E>[static_cast<int>(value)];
}

// Which codes are NaN.
enum class NanEncoding : std::uint8_t {
  none,
  ieee,          // the highest exponent with a mantissa that is not 0 (mantissa 0 is Inf)
  all_ones,      // only the code with ones below the sign; "fn" in names
  negative_zero  // only the code of -0; "fnuz" in names
};
template <> inline constexpr std::string_view kEnumNames<NanEncoding>[] = {"none", "ieee", "all-ones", "negative-zero"};

struct ValueTable;  // format_table.h

struct Format {
  bool is_signed = true;
  int exponent_bits = 0;  // 1 to 8
  int mantissa_bits = 0;  // 0 to 23, without the hidden bit
  int bias = 0;           // a normal code has the value (1 + mantissa / 2^mantissa_bits) * 2^(exponent - bias)
  bool has_inf = false;
  NanEncoding nan = NanEncoding::none;
  bool has_negative_zero = true;
  bool subnormals = true;  // false: a rounded result below min_normal() becomes zero
  bool has_zero = true;    // false: code 0 has the value 2^-bias, as in e8m0fnu
  // Not null: the format is this list of values (format_table.h), and the fields above say nothing. Its smallest
  // positive value counts as normal. GPUs and accumulators take no such format.
  const ValueTable* table = nullptr;

  // The IEEE form of eXmY: bias 2^(X-1) - 1, Inf, NaN, -0 and subnormals. A format without mantissa bits has no Inf,
  // and its highest code is NaN. Error if X is not 1 to 8 or Y is not 0 to 23.
  static Format ieee(int exponent_bits, int mantissa_bits);
  // Multiples of 2^-fraction below 2^integer in magnitude, without -0: sign and magnitude, 1 to 24 bits of it. The
  // upper half counts as normal, the lower as subnormal: its values have fewer significant bits. Error for other sizes.
  static Format fixed_point(int integer_bits, int fraction_bits, bool is_signed = true);

  int bits() const { return table ? table_bits() : static_cast<int>(is_signed) + exponent_bits + mantissa_bits; }
  int storage_bits() const;  // bits that one code takes in memory: 4, 6, 8, 16 or 32
  std::uint32_t sign_bit() const { return is_signed && !table ? 1u << (exponent_bits + mantissa_bits) : 0; }
  std::uint32_t max_code() const;                 // the code of the largest finite value
  std::optional<std::uint32_t> inf_code() const;  // the code of +Inf
  std::optional<std::uint32_t> nan_code() const;  // the quiet NaN without a sign
  double max() const { return decode(max_code()); }
  double min() const;  // the lowest finite value
  double min_normal() const;
  double min_positive() const;  // the smallest subnormal value, or min_normal() without subnormals
  double epsilon() const;       // the distance from 1 to the next value: 2^-mantissa_bits
  int max_exponent() const;     // floor(log2(max())); "emax" in the MX specification
  float decode(std::uint32_t code) const;

  bool operator==(const Format&) const = default;

 private:
  int table_bits() const;
};

// Throws Error that names the wrong field and what is allowed. Every value must be exact in f32, and the smallest
// normal value must be normal in f32.
void check_valid(const Format& format);

// The format with this name: of named_formats() or table_formats(), OCP's "e2m1", "e2m3" or "e3m2", "eXmY" for
// Format::ieee(X, Y), "qI.F" for fixed point, "intN" for integers with N bits in all (sign and magnitude; the tables
// int8tc, int4tc and int2tc have two's complement's lowest value); "ueXmY", "uqI.F" and "uintN" have no sign.
// Error that lists the names for any other text.
Format format(std::string_view name);
// The format's name: "eXmY" for an IEEE form, "qI.F" for fixed point, a list of the fields for a format without a name.
std::string to_string(const Format& format);
struct NamedFormat {
  std::string_view name;
  Format format;
  std::string_view about;  // its source
  bool common = true;      // what_if looks at it without being asked
};
const std::vector<NamedFormat>& named_formats();
// The format of a floating dtype of at most 32 bits. Error for any other dtype.
Format format_of(DType dtype);
// The dtype that stores this format, if one does.
std::optional<DType> dtype_of_format(const Format& format);

}  // namespace gradual
