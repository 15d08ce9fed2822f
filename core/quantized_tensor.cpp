#include "quantized_tensor.h"

#include <algorithm>

#include "dispatch.h"
#include "memory.h"
#include "ops.h"
#include "rounding.h"

namespace gradual {
namespace {

// [rows, K] of T in the layout of the codes as a tensor of `shape`.
Tensor in_order(const QuantizedTensor& q, const Tensor& matrix) {
  const StageScope amp(chain().amp, nullptr), autograd(chain().autograd, nullptr);
  Shape sizes = q.shape;
  if (sizes.empty()) return matrix.reshape(sizes);
  const std::int64_t k = sizes[q.axis];
  sizes.erase(q.axis);
  sizes.push_back(k);
  Shape order;
  for (int i = 0; i < sizes.size(); ++i) order.push_back(i < q.axis ? i : i == q.axis ? sizes.size() - 1 : i - 1);
  return matrix.reshape(sizes).permute(order).contiguous();
}

}  // namespace

void pack_codes(const std::uint8_t* codes, std::int64_t n, int storage_bits, std::uint8_t* packed) {
  const std::int64_t bytes = packed_bytes(n, storage_bits);
  const int group = storage_bits == 4 ? 2 : storage_bits == 6 ? 4 : 1;  // codes that fill whole bytes
  for (std::int64_t i = 0, at = 0; i < n; i += group, at += group * storage_bits / 8) {
    std::uint32_t word = 0;
    for (std::int64_t k = 0; k < group && i + k < n; ++k)
      word |= static_cast<std::uint32_t>(codes[i + k]) << (k * storage_bits);
    for (std::int64_t b = 0; b < group * storage_bits / 8 && at + b < bytes; ++b)
      packed[at + b] = static_cast<std::uint8_t>(word >> (8 * b));
  }
}

void unpack_codes(const std::uint8_t* packed, std::int64_t n, int storage_bits, std::uint8_t* codes) {
  const auto mask = static_cast<std::uint32_t>((1 << storage_bits) - 1);
  const std::int64_t bytes = packed_bytes(n, storage_bits);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t bit = i * storage_bits;
    std::uint32_t word = packed[bit / 8];
    if (bit / 8 + 1 < bytes) word |= static_cast<std::uint32_t>(packed[bit / 8 + 1]) << 8;
    codes[i] = static_cast<std::uint8_t>((word >> (bit % 8)) & mask);
  }
}

std::size_t QuantizedTensor::nbytes() const { return codes.nbytes() + (scales.defined() ? scales.nbytes() : 0); }

Tensor QuantizedTensor::scale_values() const {
  if (!scales.defined() || scales.dtype() == DType::f32) return scales;
  Tensor values = empty(scales.sizes());
  gradual::decode(scale_format, scales.raw(), values.data<float>(), scales.numel());
  return values;
}

Tensor QuantizedTensor::decode() const {
  const std::int64_t n = numel();
  Tensor values = empty({n});
  if (format.storage_bits() > 8 || format.storage_bits() == 8) {
    gradual::decode(format, codes.raw(), values.data<float>(), n);
  } else {
    const Scratch bytes(static_cast<std::size_t>(n) + 1);
    unpack_codes(codes.data<std::uint8_t>(), n, format.storage_bits(), bytes.as<std::uint8_t>());
    gradual::decode(format, bytes.data(), values.data<float>(), n);
  }
  return in_order(*this, values);
}

Tensor QuantizedTensor::unpack() const {
  const std::int64_t n = numel();
  Tensor wide = empty({n}, {.dtype = DType::i32});
  auto* out = wide.data<std::int32_t>();
  const auto* in = codes.data<std::uint8_t>();
  const int bits = format.storage_bits();
  if (bits <= 8) {
    const Scratch bytes(static_cast<std::size_t>(n) + 1);
    unpack_codes(in, n, bits, bytes.as<std::uint8_t>());
    std::copy_n(bytes.as<std::uint8_t>(), n, out);
  } else if (bits == 16) {
    std::copy_n(reinterpret_cast<const std::uint16_t*>(in), n, out);
  } else {
    std::copy_n(reinterpret_cast<const std::int32_t*>(in), n, out);
  }
  return in_order(*this, wide);
}

Tensor QuantizedTensor::dequantize() const {
  Tensor values = decode();
  if (!scales.defined() && global_scale == 1) return values;
  const StageScope amp(chain().amp, nullptr), autograd(chain().autograd, nullptr);
  Shape sizes = shape.empty() ? Shape{1} : shape;
  const std::int64_t k = sizes[axis];
  const Tensor matrix = values.reshape(sizes).transpose(axis, -1).contiguous();
  const std::int64_t rows = k ? matrix.numel() / k : 0;
  auto* p = matrix.data<float>();
  const Tensor factors = scales.defined() ? scale_values() : ones({1, 1});
  const float* factor = factors.data<float>();
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < k; ++c, ++p) {
      const std::int64_t at = scales.defined() ? r / block_rows * factors.size(1) + c / block_cols : 0;
      *p = *p * factor[at] * global_scale;
    }
  return matrix.transpose(axis, -1).contiguous().reshape(shape);
}

}  // namespace gradual
