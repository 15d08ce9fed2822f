#include "cost.h"

#include <algorithm>

#include "fusions.h"

namespace gradual {
namespace {

double count(const Tensor& t) { return t.defined() ? static_cast<double>(t.numel()) : 0; }

double last(const Tensor& t) { return t.dim() ? static_cast<double>(t.sizes().back()) : 1; }

// Multiply-adds of a convolution per element of its output: a filter's size.
double filter(const Tensor& weight) {
  const Shape& s = weight.sizes();
  return static_cast<double>(s[1] * s[2] * s[3]);
}

double contraction(const OpCall& c, const Tensor& y) {
  if (c.op == OpId::conv2d_backward_input) return 2 * count(c[0]) * filter(c[1]);
  if (c.op == OpId::conv2d_backward_weight) return 2 * count(c[0]) * filter(y);  // each dy times each filter tap
  if (c.op == OpId::flash_attention)  // two products per query and key; five in backward
    return 2 * count(c[0]) / last(c[0]) * static_cast<double>(c[1].size(-2)) * (last(c[0]) + last(c[2]));
  if (c.op == OpId::flash_attention_backward)
    return 2 * count(c[1]) / last(c[1]) * static_cast<double>(c[2].size(-2)) * (3 * last(c[1]) + 2 * last(c[3]));
  if (c.op == OpId::linear_backward_weight) return 2 * count(c[0]) * last(c[1]) + count(c[0]);
  const double bias = c.inputs.size() > 2 && c[2].defined() ? count(y) : 0;
  return 2 * count(y) * (c.op == OpId::conv2d ? filter(c[1]) : last(c[0])) + bias;
}

double pooling(const OpCall& c, const Tensor& y) {
  if (c.op != OpId::max_pool2d && c.op != OpId::avg_pool2d) return std::max(count(c[0]), count(y));
  const Size2& kernel = c.get<PoolAttrs>().kernel;
  return count(y) * static_cast<double>(kernel[0] * kernel[1]);
}

double in_place(const OpCall& c) {
  if (c.op == OpId::copy_ || c.op == OpId::fill_) return 0;
  if (c.op == OpId::add_ || c.op == OpId::mul_) return (c.op == OpId::add_ && c[1].defined() ? 2 : 1) * count(c[0]);
  if (c.op == OpId::batch_norm_update_) return 9 * count(c[0]);
  const bool unscales = c.op == OpId::unscale_;  // one operation for each gradient
  double elements = 0;
  for (int i = unscales ? 1 : 0; i < c.inputs.size(); i += unscales ? 2 : 1) elements += count(c[i]);
  return unscales ? elements : 3 * elements;  // roughly, of a step: a few operations per tensor of state
}

double flops(const OpCall& c, const Tensor& y) {
  switch (op_info(c.op).kind) {
    case OpKind::Elementwise: return c.op == OpId::where ? 0 : count(y);
    case OpKind::Transcendental:
    case OpKind::Comparison:
    case OpKind::Random: return count(y);
    case OpKind::Reduction: return count(c[0]) * (c.op == OpId::var || c.op == OpId::norm ? 3 : 1);
    case OpKind::Contraction: return contraction(c, y);
    case OpKind::Pooling: return pooling(c, y);
    case OpKind::Normalization: return count(c[0]) * (c.inputs.size() > 3 ? 8 : 5);  // about: passes over the data
    case OpKind::Loss: return 5 * std::max(count(c[0]), count(y));
    case OpKind::InPlace: return in_place(c);
    case OpKind::Movement: return c.op == OpId::scatter_add ? count(c[2]) : c.op == OpId::index_add ? count(c[0]) : 0;
    default: return 0;  // views move no data; the parts of composite and custom ops are calls of their own
  }
}

}  // namespace

Cost cost(const OpCall& call, const Outputs& out) {
  const OpKind kind = op_info(call.op).kind;
  if (kind == OpKind::View || kind == OpKind::Custom) return {};
  // The second op of a fusion is elementwise.
  Cost total{.flops = flops(call, out[0]) + (fusion_of(call) ? count(out[0]) : 0)};
  const auto add = [&](const Tensor& t) { total.bytes += t.defined() ? static_cast<double>(t.nbytes()) : 0; };
  for (int i = 0; i < call.inputs.size(); ++i) add(call[i]);
  for (const Tensor& t : out.values) add(t);
  return total;
}

}  // namespace gradual
