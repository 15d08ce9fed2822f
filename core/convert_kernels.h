#pragma once

#include <array>
#include <cstdint>

#include "dtype.h"

namespace gradual::detail {

// Contiguous conversions between float and the four narrow formats, in one instruction set.
struct ConvertKernels {
  using Encode = void (*)(const float* in, void* out, std::int64_t n);
  using Decode = void (*)(const void* in, float* out, std::int64_t n);
  std::array<Encode, 4> encode;  // by narrow_index
  std::array<Decode, 4> decode;
};

constexpr bool is_narrow(DType dtype) { return dtype >= DType::f16 && dtype <= DType::f8e5m2; }

// f16, bf16, f8e4m3fn, f8e5m2 are 0 to 3.
constexpr std::size_t narrow_index(DType dtype) {
  return static_cast<std::size_t>(dtype) - static_cast<std::size_t>(DType::f16);
}

extern const ConvertKernels kPortableKernels;

// Null where the processor (or the compiler's target) lacks the instructions.
const ConvertKernels* avx2_kernels();    // AVX2 and F16C
const ConvertKernels* avx512_kernels();  // AVX-512 F, BW and VL

}  // namespace gradual::detail
