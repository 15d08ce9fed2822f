// Backward rules of norms, softmax and losses. The fused backward rows serve a plain backward; where the backward
// itself is recorded, the composed form of the same formula is used.
#include "../core/ops.h"
#include "grad_meta.h"
#include "rule.h"

namespace gradual {
namespace {

using C = RuleContext;

// The shape that lets a [C] tensor meet [N, C, ..].
Shape channel_shape(const Shape& sizes) {
  Shape s = Shape::filled(sizes.size(), 1);
  s[1] = sizes[1];
  return s;
}
Shape all_but_channel(const Shape& sizes) {
  Shape dims{0};
  for (int i = 2; i < sizes.size(); ++i) dims.push_back(i);
  return dims;
}
Tensor optional_input(const C& c, int i) { return c.has_input(i) ? c.input(i) : Tensor(); }
DType wide(DType d) { return d == DType::f64 ? DType::f64 : DType::f32; }

// With xh the normalised input and g = dy w: dx = invstd (g - mean(g) - xh mean(g xh)), means over `dims`
// (Ioffe and Szegedy 2015; Ba et al. 2016). Without statistics in the graph (batch norm in eval): dx = invstd g.
Tensor normalized_dx(const Tensor& g, const Tensor& xh, const Tensor& invstd, const Shape& dims, bool statistics) {
  if (!statistics) return g * invstd;
  return invstd * (g - mean(g, dims, true) - xh * mean(g * xh, dims, true));
}

// What the composed forms need, in the wide dtype and on the tape again.
struct Normalized {
  Tensor dy, xh, invstd, weight;
};

Normalized normalize(const Tensor& dy, const Tensor& x, const Shape& dims, double eps, bool centre,
                     const Tensor& weight) {
  const DType d = wide(x.dtype());
  const Tensor xw = cast(x, d);
  const Tensor centred = centre ? xw - mean(xw, dims, true) : xw;
  const Tensor invstd = rsqrt(mean(square(centred), dims, true) + eps);
  return {cast(dy, d), centred * invstd, invstd, weight.defined() ? cast(weight, d) : Tensor()};
}

void batch_norm_rule(const C& c) {
  const Tensor x = c.input(0);
  const Tensor weight = optional_input(c, 1);
  const auto& a = c.get<NormAttrs>();
  if (!c.create_graph()) {
    const Outputs r = batch_norm_backward(c.grad(), x, weight, c.output(1), c.output(2), a);
    if (c.needs(0)) c.set(0, r[0]);
    if (c.needs(1)) c.set(1, r[1]);
    if (c.needs(2)) c.set(2, cast(r[2], c.dtype(2)));
    return;
  }
  const Shape dims = all_but_channel(x.sizes());
  const Shape channel = channel_shape(x.sizes());
  Normalized n = normalize(c.grad(), x, dims, a.eps, true, weight);
  if (!a.training) {
    n.invstd = reshape(detached(c.node().saved_outputs[2]), channel);
    n.xh = (cast(x, n.dy.dtype()) - reshape(detached(c.node().saved_outputs[1]), channel)) * n.invstd;
  }
  const Tensor g = n.weight.defined() ? n.dy * reshape(n.weight, channel) : n.dy;
  if (c.needs(0)) c.set(0, cast(normalized_dx(g, n.xh, n.invstd, dims, a.training), c.dtype(0)));
  if (c.needs(1)) c.set(1, cast(sum(n.dy * n.xh, dims), c.dtype(1)));
  if (c.needs(2)) c.set(2, cast(sum(n.dy, dims), c.dtype(2)));
}

void trailing_norm_rule(const C& c, bool centre) {
  const Tensor x = c.input(0);
  const Tensor weight = optional_input(c, 1);
  const auto& a = c.get<NormAttrs>();
  const bool bias = c.inputs() > 2 && c.needs(2);
  if (!c.create_graph()) {
    const Outputs r = centre ? layer_norm_backward(c.grad(), x, weight, c.output(1), c.output(2), a)
                             : rms_norm_backward(c.grad(), x, weight, c.output(1), a);
    if (c.needs(0)) c.set(0, r[0]);
    if (c.needs(1)) c.set(1, r[1]);
    if (bias) c.set(2, cast(r[2], c.dtype(2)));
    return;
  }
  Shape dims;
  Shape lead;
  for (int i = 0; i < x.ndim(); ++i) (i < x.ndim() - a.dims ? lead : dims).push_back(i);
  const Normalized n = normalize(c.grad(), x, dims, a.eps, centre, weight);
  const Tensor g = n.weight.defined() ? n.dy * n.weight : n.dy;
  if (c.needs(0)) {
    const Tensor dx =
        centre ? normalized_dx(g, n.xh, n.invstd, dims, true) : n.invstd * (g - n.xh * mean(g * n.xh, dims, true));
    c.set(0, cast(dx, c.dtype(0)));
  }
  const auto over_lead = [&](const Tensor& t) { return lead.empty() ? t : sum(t, lead); };
  if (c.needs(1)) c.set(1, cast(over_lead(n.dy * n.xh), c.dtype(1)));
  if (bias) c.set(2, cast(over_lead(n.dy), c.dtype(2)));
}
void layer_norm_rule(const C& c) { trailing_norm_rule(c, true); }
void rms_norm_rule(const C& c) { trailing_norm_rule(c, false); }

void softmax_rule(const C& c) {
  const int dim = c.get<DimAttrs>().dim;
  const Tensor y = c.output(0);
  if (!c.create_graph()) return c.set(0, softmax_backward(c.grad(), y, dim));
  if (y.ndim() == 0) return c.set(0, c.grad() * (y - y));
  c.set(0, y * (c.grad() - sum(c.grad() * y, {dim}, true)));
}
void log_softmax_rule(const C& c) {
  const int dim = c.get<DimAttrs>().dim;
  const Tensor y = c.output(0);
  if (!c.create_graph()) return c.set(0, log_softmax_backward(c.grad(), y, dim));
  if (y.ndim() == 0) return c.set(0, c.grad() * (y - y));
  c.set(0, c.grad() - exp(y) * sum(c.grad(), {dim}, true));
}

// dx = weight_of_row (softmax(x) - target distribution).
void cross_entropy_rule(const C& c) {
  const auto& a = c.get<CrossEntropyAttrs>();
  const Tensor classes = c.input(1);
  if (!c.create_graph()) return c.set(0, cross_entropy_backward(c.grad(), c.output(1), classes, a));
  const Tensor log_p = log_softmax(c.input(0), 1);
  const std::int64_t count = c.sizes(0)[1];
  const DType d = log_p.dtype();
  const Tensor used = classes != a.ignore_index;
  const Tensor hot = cast(one_hot(where(used, classes, 0), count), d);
  const double smooth = a.label_smoothing;
  const Tensor target = hot * (1 - smooth) + smooth / static_cast<double>(count);
  Tensor per_row = c.grad();
  if (a.reduction == static_cast<int>(Reduction::mean)) per_row = per_row / cast(sum(used), d);
  const Tensor weight = cast(used, d) * per_row;
  c.set(0, (exp(log_p) - target) * unsqueeze(weight, 1));
}

}  // namespace

void register_normalization_rules() {
  const auto x_and = [](std::uint16_t more) { return static_cast<std::uint16_t>(in(0) | more); };
  const std::uint16_t bn = x_and(static_cast<std::uint16_t>(in(1) | out(1) | out(2)));
  set_rule(OpId::batch_norm, batch_norm_rule, {bn, bn, bn});
  set_rule(OpId::layer_norm, layer_norm_rule, {bn, bn, bn});
  const std::uint16_t rms = x_and(static_cast<std::uint16_t>(in(1) | out(1)));
  set_rule(OpId::rms_norm, rms_norm_rule, {rms, rms});
  set_rule(OpId::softmax, softmax_rule, {out(0)});
  set_rule(OpId::log_softmax, log_softmax_rule, {out(0)});
  set_rule(OpId::cross_entropy, cross_entropy_rule, {static_cast<std::uint16_t>(in(0) | in(1) | out(1))});
  for (OpId op : {OpId::batch_norm_backward, OpId::layer_norm_backward, OpId::rms_norm_backward, OpId::softmax_backward,
                  OpId::log_softmax_backward, OpId::cross_entropy_backward})
    set_no_rule(op, "fused backward: under create_graph the composed form runs in its place");
  for (OpId op : {OpId::mse_loss, OpId::l1_loss, OpId::bce_loss, OpId::bce_with_logits_loss})
    set_no_rule(op, "composite: its parts have rules");
}

}  // namespace gradual
