#include "quantized_tensor.h"

#include <algorithm>

#include "../formats/rounding.h"
#include "../ops/dispatch.h"
#include "../ops/ops.h"
#include "../support/parallel.h"
#include "../support/throwf.h"
#include "../tensor/memory.h"
#include "quantizer_call.h"
#include "quantizer_kernels.h"

namespace gradual {
namespace {

// [rows, K] of T in the layout of the codes as a contiguous tensor of `shape`.
Tensor in_order(const QuantizedTensor& q, const Tensor& matrix) {
  const StageScope amp(chain().amp, nullptr), autograd(chain().autograd, nullptr);
  return detail::with_axis_last(matrix, q.shape, q.axis).contiguous();
}

// The values of the codes in their order, with these sizes.
Tensor decoded(const QuantizedTensor& q, const Shape& sizes) {
  const std::int64_t n = q.numel();
  Tensor values = empty(sizes, {.device = q.device()});
  if (q.device().is_cuda()) return device::decode(q, values), values;
  const int bits = q.format.storage_bits();
  if (bits >= 8) {
    decode(q.format, q.codes.raw(), values.data<float>(), n);
  } else {
    const Scratch bytes(static_cast<std::size_t>(n));
    unpack_codes(q.codes.data<std::uint8_t>(), n, bits, bytes.as<std::uint8_t>());
    decode(q.format, bytes.data(), values.data<float>(), n);
  }
  return values;
}

// Multiplies the values of codes, in their order, by their scales.
void unscale(const QuantizedTensor& q, const Tensor& values) {
  const float global = q.global_scale.defined() ? *q.global_scale.data<float>() : 1;
  if (!q.scales.defined() && global == 1) return;
  const std::int64_t k = q.shape.empty() ? 1 : q.shape[q.axis];
  const Tensor factors = q.scales.defined() ? q.scale_values() : ones({1, 1});
  auto* value = values.data<float>();
  const float* factor = factors.data<float>();
  parallel_for(k ? q.numel() / k : 0, std::max<std::int64_t>(1, 16 * 1024 / std::max<std::int64_t>(1, k)),
               [&](std::int64_t row, std::int64_t end) {
                 for (; row < end; ++row) {
                   const float* of_row = factor + row / q.block_rows * factors.size(1);
                   float* const v = value + row * k;
                   for (std::int64_t c = 0; c < k; ++c) v[c] = v[c] * of_row[c / q.block_cols] * global;
                 }
               });
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

Tensor detail::moved(const Tensor& t, Device device) {
  if (!t.defined() || t.device() == device) return t;
  const StageScope amp(chain().amp, nullptr), autograd(chain().autograd, nullptr), observe(chain().observe, nullptr);
  return t.to(device);
}

Tensor detail::with_axis_last(const Tensor& matrix, Shape shape, int axis) {
  const StageScope amp(chain().amp, nullptr), autograd(chain().autograd, nullptr);
  if (shape.empty()) return matrix.reshape(shape);
  Shape order;
  for (int i = 0; i < shape.size(); ++i) order.push_back(i < axis ? i : i == axis ? shape.size() - 1 : i - 1);
  shape.push_back(shape[axis]);
  shape.erase(axis);
  return matrix.reshape(shape).permute(order);
}

QuantizedTensor QuantizedTensor::to(Device device) const {
  if (format.table && device.is_cuda()) throwf("codes of {}, a table of values, stay on the CPU", to_string(format));
  QuantizedTensor moved = *this;
  for (Tensor* part : {&moved.codes, &moved.scales, &moved.global_scale}) *part = detail::moved(*part, device);
  return moved;
}

std::size_t QuantizedTensor::nbytes() const { return codes.nbytes() + (scales.defined() ? scales.nbytes() : 0); }

Tensor QuantizedTensor::scale_values() const {
  if (!scales.defined() || scales.dtype() == DType::f32) return scales;
  QuantizedTensor alone;
  alone.format = scale_format, alone.shape = scales.sizes(), alone.codes = scales;
  return decoded(alone, alone.shape);
}

Tensor QuantizedTensor::decode() const {
  Tensor values = in_order(*this, decoded(*this, {numel()}));
  QuantizerCall{QuantizerCall::decode, codes, values, scales, nullptr, axis}.tell_observers();
  return values;
}

Tensor QuantizedTensor::unpack() const {
  if (device().is_cuda()) return detail::moved(to(Device::cpu()).unpack(), device());  // rare: it is for looking at
  const std::int64_t n = numel();
  Tensor wide = empty({n}, {.dtype = DType::i32});
  auto* out = wide.data<std::int32_t>();
  const auto* in = codes.data<std::uint8_t>();
  const int bits = format.storage_bits();
  if (bits <= 8) {
    const Scratch bytes(static_cast<std::size_t>(n) + 1);
    unpack_codes(in, n, bits, bytes.as<std::uint8_t>());
    std::copy_n(bytes.as<std::uint8_t>(), n, out);
  } else if (bits == 16) std::copy_n(reinterpret_cast<const std::uint16_t*>(in), n, out);
  else std::copy_n(reinterpret_cast<const std::int32_t*>(in), n, out);
  return in_order(*this, wide);
}

Tensor QuantizedTensor::dequantize() const {
  const Tensor flat = device().is_cuda() ? empty({numel()}, {.device = device()}) : decoded(*this, {numel()});
  if (device().is_cuda()) device::dequantize(*this, scale_values(), flat);
  else unscale(*this, flat);
  Tensor values = in_order(*this, flat);
  QuantizerCall{QuantizerCall::decode, codes, values, {}, nullptr, axis}.tell_observers();
  return values;
}

}  // namespace gradual
