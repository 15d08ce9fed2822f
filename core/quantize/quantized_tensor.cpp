#include "quantized_tensor.h"

#include <algorithm>
#include <optional>

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
  const StageScope amp(chain().amp, nullptr);
  const StageScope autograd(chain().autograd, nullptr);
  const StageScope exact(chain().results, nullptr);
  return detail::with_axis_last(matrix, q.shape, q.axis).contiguous();
}

// The codes, each in whole bytes.
const std::uint8_t* loose(const QuantizedTensor& q, std::optional<Scratch>& bytes) {
  const auto* packed = q.codes.data<std::uint8_t>();
  if (q.format.storage_bits() >= 8) return packed;
  auto* const codes = bytes.emplace(static_cast<std::size_t>(q.numel())).as<std::uint8_t>();
  unpack_codes(packed, q.numel(), q.format.storage_bits(), codes);
  return codes;
}

// The values of the codes in their order, with these sizes.
Tensor decoded(const QuantizedTensor& q, const Shape& sizes) {
  const std::int64_t n = q.numel();
  Tensor values = empty(sizes, {.device = q.device()});
  if (q.device().is_cuda()) {
    device::dequantize(q, {}, {}, values);
    return values;
  }
  std::optional<Scratch> bytes;
  decode(q.format, loose(q, bytes), values.data<float>(), n);
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
  const float* zero = q.zero_points.defined() ? q.zero_points.data<float>() : nullptr;
  parallel_for(k ? q.numel() / k : 0, std::max<std::int64_t>(1, 16 * 1024 / std::max<std::int64_t>(1, k)),
               [&](std::int64_t row, std::int64_t end) {
                 for (; row < end; ++row) {
                   float* const v = value + row * k;
                   for (std::int64_t c = 0; c < k; ++c) {
                     const std::int64_t block = row / q.block_rows * factors.size(1) + c / q.block_cols;
                     v[c] = detail::unscaled(zero ? v[c] - zero[block] : v[c], factor[block], global);
                   }
                 }
               });
}

}  // namespace

void pack_codes(const std::uint8_t* codes, std::int64_t n, int storage_bits, std::uint8_t* packed) {
  const std::int64_t bytes = packed_bytes(n, storage_bits);
  for (std::int64_t i = 0, at = 0; i < n; i += 4) {  // four codes fill whole bytes
    std::uint32_t word = 0;
    for (std::int64_t k = 0; k < 4 && i + k < n; ++k)
      word |= static_cast<std::uint32_t>(codes[i + k]) << (k * storage_bits);
    for (const std::int64_t end = std::min(bytes, at + storage_bits / 2); at < end; word >>= 8)
      packed[at++] = static_cast<std::uint8_t>(word);
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
  const StageScope amp(chain().amp, nullptr);
  const StageScope autograd(chain().autograd, nullptr);
  const StageScope observe(chain().observe, nullptr);
  return t.to(device);
}

Tensor detail::with_axis_last(const Tensor& matrix, Shape shape, int axis) {
  const StageScope amp(chain().amp, nullptr);
  const StageScope autograd(chain().autograd, nullptr);
  if (shape.empty()) return matrix.reshape(shape);
  Shape order;
  for (int i = 0; i < shape.size(); ++i) order.push_back(i < axis ? i : i == axis ? shape.size() - 1 : i - 1);
  shape.push_back(shape[axis]);
  shape.erase(axis);
  return matrix.reshape(shape).permute(order);
}

QuantizedTensor QuantizedTensor::to(Device device) const {
  if (device.is_cuda() && (format.table || zero_points.defined()))
    throwf("codes of {}, a table of values or with zero points, stay on the CPU", to_string(format));
  QuantizedTensor moved = *this;
  for (Tensor* part : {&moved.codes, &moved.scales, &moved.global_scale}) *part = detail::moved(*part, device);
  return moved;
}

std::size_t QuantizedTensor::nbytes() const { return codes.nbytes() + (scales.defined() ? scales.nbytes() : 0); }

Tensor QuantizedTensor::scale_values() const {
  if (!scales.defined() || scales.dtype() == DType::f32) return scales;
  QuantizedTensor alone;
  alone.format = scale_format;
  alone.shape = scales.sizes();
  alone.codes = scales;
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
  std::optional<Scratch> bytes;
  const std::uint8_t* in = loose(*this, bytes);
  if (const int width = code_bytes(format); width == 1) std::copy_n(in, n, out);
  else if (width == 2) std::copy_n(reinterpret_cast<const std::uint16_t*>(in), n, out);
  else std::copy_n(reinterpret_cast<const std::int32_t*>(in), n, out);
  return in_order(*this, wide);
}

Tensor QuantizedTensor::dequantize() const {
  const Tensor flat = device().is_cuda() ? empty({numel()}, {.device = device()}) : decoded(*this, {numel()});
  if (device().is_cuda()) device::dequantize(*this, scale_values(), global_scale, flat);
  else unscale(*this, flat);
  Tensor values = in_order(*this, flat);
  QuantizerCall{QuantizerCall::decode, codes, values, {}, nullptr, axis}.tell_observers();
  return values;
}

}  // namespace gradual
