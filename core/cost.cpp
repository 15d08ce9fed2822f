#include "cost.h"

namespace gradual {
namespace {

double count(const Tensor& t) { return t.defined() ? static_cast<double>(t.numel()) : 0; }

double last(const Tensor& t) { return t.ndim() ? static_cast<double>(t.sizes().back()) : 1; }

// Multiply-adds of a convolution for each element of its output: a filter's size.
double filter(const Shape& weight) { return static_cast<double>(weight[1] * weight[2] * weight[3]); }

double contraction(const OpCall& c, const Tensor& y) {
  switch (c.op) {
    case OpId::matmul: return 2 * count(y) * last(c[0]);
    case OpId::linear: return 2 * count(y) * last(c[0]) + (c[2].defined() ? count(y) : 0);
    case OpId::conv2d: return 2 * count(y) * filter(c[1].sizes()) + (c[2].defined() ? count(y) : 0);
    case OpId::conv2d_backward_input: return 2 * count(c[0]) * filter(c[1].sizes());
    default: return 2 * count(c[0]) * filter(y.sizes());  // conv2d_backward_weight: dy meets each filter tap
  }
}

double pooling(const OpCall& c, const Tensor& y) {
  if (c.op == OpId::max_pool2d || c.op == OpId::avg_pool2d) {
    const auto& a = c.get<PoolAttrs>();
    return count(y) * static_cast<double>(a.kernel[0] * a.kernel[1]);
  }
  return count(c[0]) > count(y) ? count(c[0]) : count(y);
}

double in_place(const OpCall& c) {
  double elements = 0;
  switch (c.op) {
    case OpId::add_: return (c[1].defined() ? 2 : 1) * count(c[0]);
    case OpId::mul_:
    case OpId::unscale_: return count(c[0]);
    case OpId::sgd_step_:
    case OpId::adam_step_:
      for (int i = 0; i < c.inputs.size(); ++i) elements += count(c[i]);
      return 3 * elements;  // about: each tensor of the state meets a few operations
    default: return 0;
  }
}

double flops(const OpCall& c, const Tensor& y) {
  switch (info(c.op).kind) {
    case OpKind::Elementwise: return c.op == OpId::cast || c.op == OpId::where ? 0 : count(y);
    case OpKind::Transcendental:
    case OpKind::Comparison: return count(y);
    case OpKind::Reduction: return count(c[0]) * (c.op == OpId::var || c.op == OpId::norm ? 3 : 1);
    case OpKind::Contraction: return contraction(c, y);
    case OpKind::Pooling: return pooling(c, y);
    case OpKind::Normalization: return count(c[0]) * (c.inputs.size() > 3 ? 8 : 5);  // about: passes over the data
    case OpKind::Loss: return 5 * (count(c[0]) > count(y) ? count(c[0]) : count(y));
    case OpKind::Random: return count(y);
    case OpKind::InPlace: return in_place(c);
    case OpKind::Movement:
      if (c.op == OpId::scatter_add) return count(c[2]);
      return c.op == OpId::index_add ? count(c[0]) : 0;
    case OpKind::View:
    case OpKind::Composite:
    case OpKind::Custom: break;  // their parts are calls of their own
  }
  return 0;
}

}  // namespace

Cost cost(const OpCall& call, const Outputs& out) {
  Cost total;
  const OpKind kind = info(call.op).kind;
  if (kind == OpKind::View || kind == OpKind::Custom) return total;
  total.flops = flops(call, out[0]);
  for (int i = 0; i < call.inputs.size(); ++i)
    if (call[i].defined()) total.bytes += static_cast<double>(call[i].nbytes());
  for (const Tensor& t : out.values)
    if (t.defined()) total.bytes += static_cast<double>(t.nbytes());
  return total;
}

}  // namespace gradual
