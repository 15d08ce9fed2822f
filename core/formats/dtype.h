#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradual {

// The storage formats of a tensor. f16 is IEEE binary16; f8e4m3fn and f8e5m2 are the OCP 8-bit formats.
enum class DType : std::uint8_t { f64, f32, f16, bf16, f8e4m3fn, f8e5m2, i64, i32, u8, bool_ };

inline constexpr int kDTypeCount = 10;

struct DTypeInfo {
  // The text that users read and write.
  std::string_view name;
  std::size_t size;   // bytes an element
  int promotion;      // the higher rank wins; f16 and bf16 share a rank, and neither holds the other
  int exponent_bits;  // floats only
  int mantissa_bits;
};
inline constexpr DTypeInfo kDTypeTable[kDTypeCount] = {
    {"f64", 8, 6, 11, 52},  {"f32", 4, 5, 8, 23}, {"f16", 2, 4, 5, 10}, {"bf16", 2, 4, 8, 7}, {"f8e4m3fn", 1, 6, 4, 3},
    {"f8e5m2", 1, 6, 5, 2}, {"i64", 8, 3, 0, 0},  {"i32", 4, 2, 0, 0},  {"u8", 1, 1, 0, 0},   {"bool", 1, 0, 0, 0},
};
constexpr std::size_t size_of(DType dtype) { return kDTypeTable[static_cast<int>(dtype)].size; }
constexpr std::string_view to_string(DType dtype) { return kDTypeTable[static_cast<int>(dtype)].name; }

constexpr bool is_floating(DType dtype) { return dtype <= DType::f8e5m2; }

// i64, i32 and u8; bool is neither floating nor integral.
constexpr bool is_integral(DType dtype) { return dtype >= DType::i64 && dtype <= DType::u8; }

constexpr bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
constexpr bool is_f8(DType dtype) { return dtype == DType::f8e4m3fn || dtype == DType::f8e5m2; }

// The inverse of to_string(). Throws Error, listing the names, for any other text.
DType dtype_from_name(std::string_view text);

// The dtype of an operation on two tensors: bool < u8 < i32 < i64 < any float. The wider float wins; f16 with bf16
// gives f32 because neither holds the other. f8 never promotes: Error unless both dtypes are equal.
DType promote(DType a, DType b);

// The range and precision of a floating dtype. `max` is the largest finite value; `epsilon` is the distance from 1 to
// the next value, 2^-mantissa_bits.
struct FloatInfo {
  double max, min_normal, min_subnormal, epsilon;
  int exponent_bits, mantissa_bits, bias;
  bool has_inf;
};

// Throws Error for a dtype that is not floating.
FloatInfo float_info(DType dtype);

// The dtype that stores elements as the C++ type T. The types of float_types.h define it themselves.
template <class T> inline constexpr DType dtype_of = T::kDType;
template <> inline constexpr DType dtype_of<double> = DType::f64;
template <> inline constexpr DType dtype_of<float> = DType::f32;
template <> inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <> inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <> inline constexpr DType dtype_of<std::uint8_t> = DType::u8;
template <> inline constexpr DType dtype_of<bool> = DType::bool_;

}  // namespace gradual
