// Decodes codes to values. Counterpart of core/quantize/quantized_tensor.cpp.
#include <cmath>

#include "../../core/quantize/quantized_tensor.h"

#include "elements.h"
#include "multiply.h"

namespace gradual::cuda {
namespace {

// A Format as a kernel decodes it (Format::decode).
struct Codes {
  const std::uint8_t* data;
  std::int64_t bytes;
  int storage_bits;
  std::uint32_t mask, sign, max;
  int mantissa_bits, exponent_offset;
  bool has_inf, minus_zero_is_nan, has_zero, subnormals;
  bool is_wide = false;  // more than 8 bits, in `dtype`: NaN keeps its bits
  DType dtype = DType::f32;

  explicit Codes(const QuantizedTensor& q)
      : data(static_cast<const std::uint8_t*>(q.codes.raw())),
        bytes(q.codes.numel()),
        storage_bits(q.format.storage_bits()),
        mask(static_cast<std::uint32_t>((std::uint64_t{1} << q.format.bits()) - 1)),
        sign(q.format.sign_bit()),
        max(q.format.max_code()),
        mantissa_bits(q.format.mantissa_bits),
        exponent_offset(q.format.bias + q.format.mantissa_bits),
        has_inf(q.format.has_inf),
        minus_zero_is_nan(q.format.nan == NanEncoding::negative_zero),
        has_zero(q.format.has_zero),
        subnormals(q.format.subnormals) {
    const auto stored = dtype_of_format(q.format);
    is_wide = storage_bits > 8 && stored;
    if (is_wide) dtype = *stored;
  }

  __device__ std::uint32_t code(std::int64_t i) const {
    if (storage_bits == 32) return reinterpret_cast<const std::uint32_t*>(data)[i];
    if (storage_bits == 16) return reinterpret_cast<const std::uint16_t*>(data)[i];
    const std::int64_t bit = i * storage_bits;
    const std::int64_t at = bit / 8;
    std::uint32_t word = data[at];
    if (at + 1 < bytes) word |= static_cast<std::uint32_t>(data[at + 1]) << 8;
    return word >> (bit % 8) & ((1u << storage_bits) - 1);
  }
  __device__ float value(std::int64_t i) const {
    if (is_wide) return load_element<float>(dtype, data, i);
    constexpr std::uint32_t kInf = 0x7f800000;
    constexpr std::uint32_t kNan = 0x7fc00000;
    constexpr std::uint32_t kSign = 0x80000000;
    const std::uint32_t c = code(i) & mask;
    const std::uint32_t size = c & ~sign;
    const std::uint32_t negative = (c & sign) != 0 ? kSign : 0;
    if (minus_zero_is_nan && c == sign) return std::bit_cast<float>(kNan);
    if (size > max) return std::bit_cast<float>((has_inf && size == max + 1 ? kInf : kNan) | negative);
    const auto exponent = static_cast<int>(size >> mantissa_bits);
    const std::uint32_t hidden = 1u << mantissa_bits;
    const std::uint32_t mantissa = size & (hidden - 1);
    float value = 0;
    if (exponent > 0 || !has_zero)
      value = std::ldexp(static_cast<float>(mantissa + hidden), exponent - exponent_offset);
    else if (subnormals) value = std::ldexp(static_cast<float>(mantissa), 1 - exponent_offset);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | negative);
  }
};

struct Decode {
  Codes codes;
  float* values;
  __device__ void operator()(std::int64_t i) const { values[i] = codes.value(i); }
};

struct Dequantize {
  Codes codes;
  // null: 1
  const float* scales;
  const float* global;
  std::int64_t k, block_rows, block_cols, across;
  float* values;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row = i / k;
    const std::int64_t col = i - row * k;
    const float scale = scales ? scales[row / block_rows * across + col / block_cols] : 1;
    values[i] = unscaled(codes.value(i), scale, global ? *global : 1);
  }
};

}  // namespace
}  // namespace gradual::cuda

namespace gradual::device {

void dequantize(const QuantizedTensor& q, const Tensor& scale_values, const Tensor& global, const Tensor& values) {
  select(q.device());
  if (!scale_values.defined() && !global.defined())
    return cuda::for_each(values.numel(), cuda::Decode{cuda::Codes(q), static_cast<float*>(values.raw())});
  const Tensor scales = scale_values.defined() ? scale_values.contiguous() : scale_values;
  const std::int64_t k = q.shape.empty() ? 1 : q.shape[q.axis];
  const auto floats = [](const Tensor& t) { return t.defined() ? static_cast<const float*>(t.raw()) : nullptr; };
  cuda::for_each(values.numel(),
                 cuda::Dequantize{cuda::Codes(q), floats(scales), floats(global), k, q.block_rows, q.block_cols,
                                  scales.defined() ? scales.size(1) : 1, static_cast<float*>(values.raw())});
}

}  // namespace gradual::device
