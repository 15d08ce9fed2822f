// Conversions of one element between a storage type and the compute types (float, double, int64), by the rules of
// convert.h. The loads and stores of all CPU and CUDA kernels use them.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>

#include "../support/host_device.h"
#include "dtype.h"
#include "float_types.h"

namespace gradual {

// The storage of a bool. Every byte but 0 is true; as a C++ bool, bytes above 1 would be undefined behaviour.
struct BoolByte {
  std::uint8_t byte;
};

template <class T>
concept Narrow = requires { T::kDType; };

template <class F> GRADUAL_HD void visit_dtype(DType dtype, F&& visit) {
  switch (dtype) {
    case DType::f64: return visit.template operator()<double>();
    case DType::f32: return visit.template operator()<float>();
    case DType::f16: return visit.template operator()<Half>();
    case DType::bf16: return visit.template operator()<BFloat16>();
    case DType::f8e4m3fn: return visit.template operator()<Float8E4M3FN>();
    case DType::f8e5m2: return visit.template operator()<Float8E5M2>();
    case DType::i64: return visit.template operator()<std::int64_t>();
    case DType::i32: return visit.template operator()<std::int32_t>();
    case DType::u8: return visit.template operator()<std::uint8_t>();
    case DType::bool_: return visit.template operator()<BoolByte>();
  }
}

// An integer as a float rounded to odd (see detail::round_to_odd).
GRADUAL_HD inline float round_to_odd(std::int64_t value) {
  const std::uint64_t magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  int shift = 0;
  while (magnitude >> shift >> 24 != 0) ++shift;
  const std::uint64_t kept = magnitude >> shift;
  const std::uint64_t odd = kept | ((kept << shift) != magnitude ? 1 : 0);
  const float rounded = static_cast<float>(odd << shift);  // 24 bits: exact
  return value < 0 ? -rounded : rounded;
}

// The first value beyond To's largest one. It is a power of two, exact in every floating type.
template <std::integral To, std::floating_point From>
inline constexpr From kEnd = static_cast<From>(std::uint64_t{1} << std::numeric_limits<To>::digits);

template <std::integral To, class From> GRADUAL_HD To saturate(From value) {
  using Range = std::numeric_limits<To>;
  if constexpr (std::floating_point<From>) {
    if (value != value) return 0;
    if (value >= kEnd<To, From>) return Range::max();
    return value <= static_cast<From>(Range::min()) ? Range::min() : static_cast<To>(value);
  } else if constexpr (sizeof(To) < sizeof(From)) {
    const From low = Range::min();
    const From high = Range::max();
    return static_cast<To>(value < low ? low : (value > high ? high : value));
  } else {
    return value;
  }
}

// One element converted between a storage type and a compute type.
template <class To, class From> GRADUAL_HD To cast_element(From value) {
  if constexpr (std::same_as<To, From>) {
    return value;
  } else if constexpr (Narrow<From>) {
    return cast_element<To>(static_cast<float>(value));
  } else if constexpr (std::same_as<From, BoolByte>) {
    return static_cast<To>(value.byte != 0);
  } else if constexpr (std::same_as<To, BoolByte>) {
    return {static_cast<std::uint8_t>(value != 0)};
  } else if constexpr (Narrow<To>) {
    if constexpr (std::same_as<From, double>) return To::from_double(value);
    else if constexpr (std::same_as<From, std::int64_t>) return To(round_to_odd(value));
    else return To(value);
  } else if constexpr (std::integral<To>) {
    return saturate<To>(value);
  } else {
#ifdef __CUDA_ARCH__
    if constexpr (std::same_as<From, double> && std::same_as<To, float>) {
      if (value != value) return detail::nan_as_f32(value);
    } else if constexpr (std::same_as<From, float> && std::same_as<To, double>) {
      if (value != value) return detail::nan_as_f64(value);
    }
#endif
    return static_cast<To>(value);
  }
}

}  // namespace gradual
