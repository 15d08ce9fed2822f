// Backward rules of norms, softmax and losses. The fused backward ops compute the values; if the backward itself is
// recorded, the composed form of the same formula builds its graph.
#include "../core/kernels/norm_element.h"
#include "../core/ops/ops.h"
#include "grad_mode.h"
#include "rule.h"

namespace gradual {
namespace {

using C = RuleContext;

// The differences between the norms: means over `dims`; weight and bias broadcast to x in the shape `weight`.
struct Norm {
  Shape dims = {};    // means are taken over dims
  Shape others = {};  // the weight's gradient is summed over others
  Shape weight = {};
  bool centre = true;      // rms_norm does not subtract the mean
  bool statistics = true;  // the statistics depend on x: false for batch norm in eval
};

// A power of two per row or channel, by NormScale: the squares of the deviations times it are normal numbers.
template <class T> Tensor scale_of_numbers(const C& c, const Norm& n) {
  using Scale = NormScale<T>;
  const Tensor invstd = detached(c.node().saved_outputs[n.centre ? 2 : 1]);
  const Tensor one = ones_like(invstd);
  Tensor near = invstd > Scale::kNearInvstd;
  if (n.centre) near = logical_and(near, abs(detached(c.node().saved_outputs[1])) < Scale::kMostUp);
  Shape kept = c.sizes(0);
  for (const std::int64_t dim : n.dims) kept[static_cast<int>(dim)] = 1;
  return reshape(where(invstd < Scale::kFarInvstd, Scale::kDown, where(near, Scale::kUp, one)), kept);
}
Tensor scale_of_numbers(const C& c, const Norm& n) {
  return c.dtype(0) == DType::f64 ? scale_of_numbers<double>(c, n) : scale_of_numbers<float>(c, n);
}

// With xh the normalised input and g = dy w: dx = invstd (g - mean(g) - xh mean(g xh)) (Ioffe and Szegedy 2015; Ba et
// al. 2016), without statistics in the graph invstd g; dw = sum(dy xh), db = sum(dy). In f32, or f64 for f64.
void composed(const C& c, const Norm& n, const Tensor& gradient) {
  const DType wide = c.dtype(0) == DType::f64 ? DType::f64 : DType::f32;
  const Tensor scale = n.statistics ? scale_of_numbers(c, n) : Tensor();
  const Tensor x = n.statistics ? cast(c.input(0), wide) * scale : cast(c.input(0), wide);
  const Tensor dy = cast(gradient, wide);
  const Tensor weight = c.optional_input(1);
  const auto mean_of = [&](const Tensor& t) { return mean(t, n.dims, true); };
  Tensor xh = n.centre && n.statistics ? x - mean_of(x) : x;
  Tensor invstd;
  if (n.statistics) {
    invstd = rsqrt(mean_of(square(xh)) + scale * c.get<NormAttrs>().eps * scale);  // scale^2 alone may be Inf
  } else {
    invstd = reshape(detached(c.node().saved_outputs[2]), n.weight);
    xh = x - reshape(detached(c.node().saved_outputs[1]), n.weight);
  }
  xh = xh * invstd;
  if (c.needs(0)) {
    Tensor g = weight.defined() ? dy * reshape(cast(weight, wide), n.weight) : dy;
    if (n.statistics) g = (n.centre ? g - mean_of(g) : g) - xh * mean_of(g * xh);
    c.set(0, n.statistics ? g * invstd * scale : g * invstd);
  }
  const auto over_others = [&](const Tensor& t) { return n.others.empty() ? t : sum(t, n.others); };
  if (c.needs(1)) c.set(1, over_others(dy * xh));
  if (c.needs(2)) c.set(2, over_others(dy));
}

// Recomputes the input of relu by forward's steps, so with the same bits; off the tape.
Tensor before_relu(const C& c, const Shape& along) {
  const NoGrad off;
  const DType wide = c.dtype(0) == DType::f64 ? DType::f64 : DType::f32;
  const auto each = [&](const Tensor& t) { return reshape(cast(t, wide), along); };
  Tensor scale = each(c.output(2));
  if (const Tensor weight = c.optional_input(1); weight.defined()) scale = scale * each(weight);
  Tensor y = (cast(c.input(0), wide) - each(c.output(1))) * scale;
  if (const Tensor bias = c.optional_input(2); bias.defined()) y = y + each(bias);
  return cast(y, c.dtype(0));
}

void batch_norm_rule(const C& c) {
  const auto& a = c.get<NormAttrs>();
  if (!c.create_graph())
    return c.set_all(call_row(OpId::batch_norm_backward, a, c.grad(), c.input(0), c.optional_input(1), c.output(1),
                              c.output(2), a.relu ? c.optional_input(2) : Tensor()));
  Norm n{.dims = {0}, .weight = Shape::filled(c.sizes(0).size(), 1), .statistics = a.training};
  for (int i = 2; i < c.sizes(0).size(); ++i) n.dims.push_back(i);
  n.others = n.dims;
  n.weight[1] = c.sizes(0)[1];
  composed(c, n, a.relu ? call_row(OpId::relu_backward, {}, c.grad(), before_relu(c, n.weight))[0] : c.grad());
}

template <bool kCentre> void trailing_norm_rule(const C& c) {
  const auto& a = c.get<NormAttrs>();
  if (!c.create_graph()) {
    const Tensor x = c.input(0);
    const Tensor weight = c.optional_input(1);
    if (kCentre)
      return c.set_all(call_row(OpId::layer_norm_backward, a, c.grad(), x, weight, c.output(1), c.output(2)));
    return c.set_all(call_row(OpId::rms_norm_backward, a, c.grad(), x, weight, c.output(1)));
  }
  Norm n{.centre = kCentre};
  for (int i = 0; i < c.sizes(0).size(); ++i) {
    const bool trailing = i >= c.sizes(0).size() - a.dims;
    (trailing ? n.dims : n.others).push_back(i);
    if (trailing) n.weight.push_back(c.sizes(0)[i]);
  }
  composed(c, n, c.grad());
}

void softmax_rule(const C& c) {
  const int dim = c.get<DimAttrs>().dim;
  const Tensor& g = c.grad();
  const Tensor y = c.output(0);
  const bool log = c.node().op == OpId::log_softmax;
  const OpId fused = log ? OpId::log_softmax_backward : OpId::softmax_backward;
  if (!c.create_graph()) return c.set(0, call_row(fused, DimAttrs{dim}, g, y)[0]);
  c.set(0, log ? g - exp(y) * sum(g, {dim}, true) : y * (g - sum(g * y, {dim}, true)));
}

// dx = weight_of_row (softmax(x) - target distribution).
void cross_entropy_rule(const C& c) {
  const auto& a = c.get<CrossEntropyAttrs>();
  const Tensor classes = c.input(1);
  if (!c.create_graph()) return c.set(0, call_row(OpId::cross_entropy_backward, a, c.grad(), c.output(1), classes)[0]);
  const Tensor used = classes != a.ignore_index;
  // Ignored rows have zero gradients, whatever their values. The gradients of these are zero too.
  const Tensor logits = where(unsqueeze(used, 1), c.input(0), 0);
  const Tensor log_p = log_softmax(a.narrow != DType::f32 ? cast(logits, DType::f32) : logits, 1);
  const std::int64_t count = c.sizes(0)[1];
  const Tensor hot = cast(one_hot(where(used, classes, 0), count), log_p.dtype());
  const Tensor target = hot * (1 - a.label_smoothing) + a.label_smoothing / static_cast<double>(count);
  const bool mean = a.reduction == Reduction::mean;
  const Tensor per_row = mean ? c.grad() / maximum(cast(sum(used), log_p.dtype()), 1) : c.grad();
  c.set(0, (exp(log_p) - target) * unsqueeze(where(used, per_row, 0), 1));
}

}  // namespace

void register_normalization_rules() {
  constexpr int kNorm = in(0) | in(1) | out(1) | out(2);
  constexpr int kRms = in(0) | in(1) | out(1);
  constexpr int kBatch = kNorm | in(2);  // the bias: for relu
  set_rule(OpId::batch_norm, {kBatch, kBatch, kBatch}, batch_norm_rule).fused = true;
  set_rule(OpId::layer_norm, {kNorm, kNorm, kNorm}, trailing_norm_rule<true>).fused = true;
  set_rule(OpId::rms_norm, {kRms, kRms}, trailing_norm_rule<false>).fused = true;
  for (const OpId op : {OpId::softmax, OpId::log_softmax}) set_rule(op, {out(0)}, softmax_rule).fused = true;
  set_rule(OpId::cross_entropy, {in(0) | in(1) | out(1)}, cross_entropy_rule).fused = true;
  set_no_rule({OpId::batch_norm_update_}, "running statistics are outside the graph");
}

}  // namespace gradual
