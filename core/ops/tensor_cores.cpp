#include "tensor_cores.h"

#include <fmt/format.h>

#include <algorithm>

#include "compute_mode.h"

namespace gradual {
namespace {

using Dims = std::vector<std::pair<const char*, std::int64_t>>;

// The dims that tensor cores tile.
Dims tiled(const OpCall& c) {
  const auto at = [](const Tensor& t, int from_end) {
    return t.dim() >= from_end ? t.sizes()[t.dim() - from_end] : std::int64_t{1};
  };
  const auto groups = [&] { return c.get<ConvAttrs>().groups; };
  const auto channels = [](std::int64_t in, std::int64_t out) {
    return Dims{{"input channels of a group", in}, {"output channels of a group", out}};
  };
  switch (c.op) {
    case OpId::matmul: return {{"m", at(c[0], 2)}, {"n", c[1].dim() > 1 ? at(c[1], 1) : 1}, {"k", at(c[0], 1)}};
    case OpId::conv2d:
    case OpId::conv2d_backward_input: return channels(c[1].sizes()[1], c[1].sizes()[0] / groups());
    case OpId::conv2d_backward_weight: return channels(c[1].sizes()[1] / groups(), c[0].sizes()[1] / groups());
    case OpId::flash_attention: return {{"head size", at(c[0], 1)}, {"value size", at(c[2], 1)}};
    case OpId::flash_attention_backward: return {{"head size", at(c[1], 1)}, {"value size", at(c[3], 1)}};
    case OpId::linear_backward_weight: return {{"m", at(c[0], 1)}, {"n", at(c[1], 1)}, {"k", at(c[0], 2)}};
    default:  // linear: all rows of x are one matrix
      return {{"m", c[0].numel() / std::max<std::int64_t>(1, at(c[0], 1))}, {"n", c[1].sizes()[0]}, {"k", at(c[0], 1)}};
  }
}

}  // namespace

TensorCores tensor_cores(const OpCall& call) {
  using Use = TensorCores::Use;
  if (op_info(call.op).kind != OpKind::Contraction) return {Use::none, "no contraction"};
  const DType dtype = call[0].dtype();
  if (dtype == DType::f32 && matmul_precision() != MatmulPrecision::tf32)
    return {Use::none, "f32 operands, and TF32 is not allowed"};
  const auto step = static_cast<std::int64_t>(16 / size_of(dtype));
  std::string why;
  const auto add = [&](const std::string& text) { why += (why.empty() ? "" : ", ") + text; };
  for (const auto& [what, size] : tiled(call))
    if (size % step != 0) add(fmt::format("{} {} is not a multiple of {}", what, size, step));
  for (int i = 0; i < 2; ++i)
    if (reinterpret_cast<std::uintptr_t>(call[i].raw()) % 16 != 0) add(fmt::format("input {} is not at 16 bytes", i));
  if (why.empty()) return {Use::full, ""};
  return {is_f8(dtype) ? Use::none : Use::partly, why};
}

}  // namespace gradual
