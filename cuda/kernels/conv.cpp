// conv2d and its two gradients: chooses their dtype and layout; counterpart of core/cpu/conv.cpp.
#include "conv.h"

#include <cstdint>

#include "../../core/kernels/contraction_operand.h"
#include "../../core/kernels/copies.h"
#include "../../core/kernels/loops.h"
#include "../../core/ops/conv_by_gemm.h"
#include "../../core/tensor/memory.h"
#include "../cuda.h"
#include "counted_again.h"
#include "kernels.h"
#include "movement.h"

namespace gradual::cuda {
namespace {

// A view with the channels last, [N, H, W, C], or the tensor unchanged.
Tensor turned(const Tensor& t, bool channels_last) {
  if (!channels_last) return t;
  const Shape& n = t.sizes();
  const Shape& s = t.strides();
  return as_strided(t, {n[0], n[2], n[3], n[1]}, {s[0], s[2], s[3], s[1]}, t.offset());
}
bool has_channels_last(const Tensor& t) { return is_channels_last(t.sizes(), t.strides()); }

// x row-major or channels-last, at an address aligned for cuDNN's vector loads.
Tensor operand(const Tensor& x, DType dtype, bool channels_last) {
  const Tensor t = dense(turned(x, channels_last), dtype);
  return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0 ? t : copied(t, dtype);
}

// Fills y with the bias.
void spread_bias(const Tensor& y, const Tensor& bias, bool channels_last) {
  Shape strides{0, 0, 0, 0};
  strides[channels_last ? 3 : 1] = bias.strides()[0];
  copy_elements(y, as_strided(bias, y.sizes(), strides, bias.offset()));
}

// The dtype of the computation. cuDNN writes the dtype that it reads, so f32 results need f32 operands: f8, f16 and
// bf16 numbers are exact in TF32, which tensor cores take.
struct Compute {
  DType dtype;
  bool tf32;
};
Compute compute(DType in, DType out) {
  if (in == out) return {in, cpu::rounds_to_tf32(in)};
  return {DType::f32, in != DType::f32 || cpu::rounds_to_tf32(in)};
}

// Returns false and does nothing if the library does not take the call. `plainly`: uses Gradual's own kernel.
bool made(const OpCall& call, const Tensor& out, const Compute& how, bool channels_last, bool plainly = false) {
  const Tensor first = operand(call[0], how.dtype, channels_last);
  const Tensor second = operand(call[1], how.dtype, channels_last);
  const Tensor result = turned(out, channels_last);
  Tensor target = result;
  if (result.dtype() != how.dtype || !result.is_contiguous()) {
    const CategoryScope scope(Category::workspace);
    target = empty(result.sizes(), {.dtype = how.dtype, .device = out.device()});
  }
  Convolution c{call.op, call.get<ConvAttrs>(), how.dtype, how.tf32, channels_last, {}, {}, {}, false};
  ConvolutionData data{first.raw(), second.raw(), target.raw()};
  c.x = call[0].sizes();
  c.w = call[1].sizes();
  c.y = out.sizes();
  if (call.op == OpId::conv2d_backward_input) {
    std::swap(c.x, c.y);
    std::swap(data.x, data.y);
  } else if (call.op == OpId::conv2d_backward_weight) {  // of dy and x
    c.x = call[1].sizes();
    c.w = out.sizes();
    c.y = call[0].sizes();
    data = {second.raw(), target.raw(), first.raw()};
  }
  if (call.op == OpId::conv2d && call[2].defined()) {
    spread_bias(target, call[2], channels_last);
    c.adds = true;
  }
  if (plainly) plain_convolve(c, data);
  else if (!convolve(c, data)) return false;
  if (!target.is_same(result)) copy_elements(result, target);
  return true;
}

void convolve_in(const OpCall& call, Outputs& out, const Compute& how) {
  const bool last = has_channels_last(call[0]) || has_channels_last(out[0]) ||
                    (call.op == OpId::conv2d_backward_weight && has_channels_last(call[1]));
  const bool narrow = size_of(how.dtype) == 2;
  const bool empty_sums = call[0].numel() == 0 || call[1].numel() == 0;
  if (library_kernels() && !empty_sums) {
    // Tries the present layout; then a copy in row-major layout; then f32 operands, which hold f16 and bf16 exactly.
    if (last && made(call, out[0], how, true)) return;
    if (made(call, out[0], how, false)) return;
    if (narrow && made(call, out[0], {DType::f32, true}, false)) return;
  }
  made(call, out[0], how, false, true);
}

void convolution(const OpCall& call, Outputs& out) {
  const DType in = call[0].dtype();
  const DType to = out[0].dtype();
  if (out[0].numel() == 0 || convolution_accumulated(call, out[0])) return;
  const bool counted = cpu::counts_for(DType::f32, to) != nullptr;
  if (counted) count_again(out, [&](Outputs& dropped) { convolve_in(call, dropped, compute(in, DType::f32)); });
  const CountScope rest(counted ? nullptr : cast_counts());
  convolve_in(call, out, compute(in, to));
}

}  // namespace

void register_convolutions() {
  for (const OpId op : {OpId::conv2d, OpId::conv2d_backward_input, OpId::conv2d_backward_weight})
    set_kernel(op, convolution);
}

}  // namespace gradual::cuda
