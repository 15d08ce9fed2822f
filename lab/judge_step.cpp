#include "judge_step.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "../autograd/autograd.h"
#include "../autograd/grad_mode.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"

namespace gradual::lab {
namespace {

constexpr int kSamples = 3;         // the first moves everything up, the others at random
constexpr double kSafety = 2;       // on the largest change of the samples
constexpr double kElementwise = 8;  // units of rounding by which operands are moved
constexpr double kComposite = 8;    // the same, of ops with sums inside

constexpr std::string_view kArranging[] = {"aten.cat.",
                                           "aten.stack.",
                                           "aten.pad.",
                                           "aten.constant_pad_nd.",
                                           "aten.clone.",
                                           "aten.roll.",
                                           "aten.flip.",
                                           "aten.repeat.",
                                           "aten.repeat_interleave.",
                                           "aten.index.",
                                           "aten.gather.",
                                           "aten.embedding.",
                                           "aten.index_select.",
                                           "aten.where.",
                                           "aten.masked_fill.",
                                           "aten.tril.",
                                           "aten.triu.",
                                           "aten.relu.",
                                           "aten.max_pool2d.",
                                           "aten.maximum.",
                                           "aten.minimum.",
                                           "aten.clamp",
                                           "aten.copy.",
                                           "aten.slice_scatter.",
                                           "aten.select_scatter.",
                                           "aten.fill.",
                                           "aten.neg.",
                                           "aten.abs.",
                                           "aten.sort.",
                                           "aten.topk.",
                                           "aten.amax.",
                                           "aten.max.",
                                           "aten.min.",
                                           "aten.amin.",
                                           "aten.index_put.",
                                           "aten.hardtanh.",
                                           "aten.relu6.",
                                           "aten.upsample_nearest2d.",
                                           "aten.lift_fresh",
                                           "_operator.getitem",
                                           "aten.zeros",
                                           "aten.ones",
                                           "aten.full",
                                           "aten.arange",
                                           "aten.new_",
                                           "aten.empty"};

constexpr std::string_view kComposites[] = {"aten.layer_norm.",
                                            "aten.batch_norm.",
                                            "aten.group_norm.",
                                            "aten.instance_norm.",
                                            "aten.rms_norm.",
                                            "aten.softmax.",
                                            "aten.log_softmax.",
                                            "aten.cross_entropy_loss.",
                                            "aten.scaled_dot_product_attention.",
                                            "aten.lstm.",
                                            "aten.gru.",
                                            "aten.rnn_",
                                            "aten.lstm_cell.",
                                            "aten.gru_cell.",
                                            "aten.var",
                                            "aten.std",
                                            "aten.norm.",
                                            "aten.linalg_vector_norm.",
                                            "aten.logsumexp.",
                                            "aten.nll_loss",
                                            "aten.mse_loss.",
                                            "aten.einsum.",
                                            "aten.cosine_similarity.",
                                            "aten.upsample_bilinear2d.",
                                            "aten.upsample_bicubic2d.",
                                            "aten.binary_cross_entropy",
                                            "aten.kl_div.",
                                            "aten.smooth_l1_loss.",
                                            "aten.avg_pool1d.",
                                            "aten.bilinear.",
                                            "aten.cumprod.",
                                            "aten.prod."};

constexpr std::string_view kRandom[] = {"aten.dropout.",     "aten.feature_dropout.", "aten.rand",  "aten.bernoulli",
                                        "aten.multinomial.", "aten.uniform",          "aten.normal"};

template <std::size_t N> bool listed(const std::string_view (&list)[N], const std::string& target) {
  return std::ranges::any_of(list, [&](std::string_view start) { return target.starts_with(start); });
}

bool moves(const Tensor& t) { return t.defined() && t.is_floating(); }

Tensor larger(const Tensor& a, const Tensor& b) { return a.defined() ? maximum(a, b) : b; }

double root_mean_square(const Tensor& t) { return t.numel() == 0 ? 0 : std::sqrt(mean(square(t)).item()); }

// |a - b|; 0 where both are the same infinity, and where one is NaN.
Tensor distance(const Tensor& a, const Tensor& b) {
  const Tensor away = abs(sub(a, b));
  return where(isfinite(away), away, 0);
}

const Tensor& of(const ValueTensors& all, int id) {
  static const Tensor none;
  const auto found = std::ranges::find(all, id, &std::pair<int, Tensor>::first);
  return found == all.end() ? none : found->second;
}

}  // namespace

Units units_of(DType dtype) {
  const FloatInfo info = float_info(dtype);
  const double store = info.epsilon / 2;
  return {dtype == DType::f64 ? store : float_info(DType::f32).epsilon / 2, store, info.min_subnormal};
}

bool only_arranges(const pt2::Step& step) {
  return step.op->aliasing != pt2::Aliasing::none || listed(kArranging, step.op->target);
}

bool draws(const pt2::Step& step) {
  const std::string& target = step.op->target;
  if (target.starts_with("aten.dropout.") || target.starts_with("aten.feature_dropout.")) {
    const double* const p = step.arguments[1].get<double>();
    const bool* const train = step.arguments[2].get<bool>();
    return !(p && *p == 0) && !(train && !*train);
  }
  if (target.starts_with("aten.scaled_dot_product_attention.")) {
    const double* const p = step.arguments[4].get<double>();
    return p && *p != 0;
  }
  return listed(kRandom, target);
}

StepBounds::StepBounds(const pt2::Program& program, pt2::Run& run)
    : program_(program), run_(run), executor_(program.plan, run), random_(1) {}

ValueTensors StepBounds::inputs_of(const pt2::Step& step) const {
  ValueTensors inputs;
  for (const int id : pt2::reads_of(program_, step)) {
    const Tensor* const t = pt2::tensor_of(run_.values[static_cast<std::size_t>(id)]);
    if (t && !of(inputs, id).defined()) inputs.emplace_back(id, *t);
  }
  return inputs;
}

ValueTensors StepBounds::evaluate(const pt2::Step& step, const ValueTensors& inputs) {
  std::vector<std::pair<int, pt2::Value>> kept;
  const auto keep = [&](int id) { kept.emplace_back(id, run_.value(id)); };
  const std::vector<int> written = pt2::writes_of(step);
  for (const int id : written) keep(id);
  for (const auto& [id, t] : inputs) keep(id);
  for (const auto& [id, t] : inputs) run_.value(id) = t;
  executor_.run(step);
  ValueTensors outputs;
  for (const int id : written) {
    const Tensor* const t = pt2::tensor_of(run_.value(id));
    if (t && !of(outputs, id).defined()) outputs.emplace_back(id, *t);
  }
  for (const auto& [id, value] : kept) run_.value(id) = value;
  return outputs;
}

// The lengths of the sums in a step that is nothing but sums of products.
StepBounds::Terms StepBounds::terms_of(const pt2::Step& step, const ValueTensors& inputs,
                                       const ValueTensors& outputs) const {
  const std::string& target = step.op->target;
  if (outputs.empty() || !outputs[0].second.defined()) return {};
  const auto argument = [&](std::size_t i) -> const Tensor& {
    static const Tensor none;
    const pt2::Ref* const r = i < step.arguments.size() ? step.arguments[i].get<pt2::Ref>() : nullptr;
    return r ? of(inputs, r->id) : none;
  };
  const Tensor& y = outputs[0].second;
  const auto count = [](std::int64_t n) { return static_cast<double>(std::max<std::int64_t>(1, n)); };
  const auto products = [&](const Tensor& a, const Tensor& b) -> Terms {
    if (!a.defined() || !b.defined() || a.dim() == 0) return {};
    const double n = count(a.size(-1));
    return {n, std::max(count(a.numel()) / n, count(b.numel()) / n)};
  };
  if (target.starts_with("aten.linear.")) return products(argument(0), argument(1));
  if (target.starts_with("aten.matmul.") || target.starts_with("aten.mm.") || target.starts_with("aten.bmm."))
    return products(argument(0), argument(1));
  if (target.starts_with("aten.addmm.") || target.starts_with("aten.baddbmm.")) {
    const Terms terms = products(argument(1), argument(2));
    return {terms.forward + 1, terms.backward};
  }
  const Tensor& w = argument(1);
  if ((target.starts_with("aten.conv") || target.starts_with("aten.convolution")) && w.defined() && y.dim() > 2) {
    const bool transposed = target.starts_with("aten.conv_transpose");
    const double forward = count(w.numel()) / count(w.size(transposed ? 1 : 0));
    const double other = count(w.numel()) / count(w.size(transposed ? 0 : 1));
    return {forward + 1, std::max({forward, other, count(y.numel()) / count(y.size(1))})};
  }
  const bool sums = target.starts_with("aten.sum.") || target.starts_with("aten.mean.") ||
                    target.starts_with("aten.avg_pool2d.") || target.starts_with("aten.adaptive_avg_pool2d.") ||
                    target.starts_with("aten.cumsum.");
  if (sums && argument(0).defined()) {
    const bool running = target.starts_with("aten.cumsum.");
    const double n = running ? count(y.numel()) : count(argument(0).numel()) / count(y.numel()) + 1;
    return {n, n};
  }
  if (target.starts_with("aten.embedding.") || target.starts_with("aten.index.") || target.starts_with("aten.gather."))
    return {1, count(y.numel())};
  return {};
}

// x + s (error + relative |x| + least), s = 1 in the first sample, else random signs.
Tensor StepBounds::moved(const Tensor& x, const Tensor& error, const Move& move, int sample) {
  Tensor by = add(mul(abs(x), move.relative), move.least);
  if (error.defined()) by = add(by, error);
  by = where(isfinite(x), by, 0);  // a mask of -Inf stays
  if (sample == 0) return add(x, by);
  std::vector<double> signs(static_cast<std::size_t>(x.numel()));
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    if (i % 64 == 0) bits = random_();
    signs[i] = (bits >> (i % 64) & 1) != 0 ? 1 : -1;
  }
  return add(x, mul(by, from_data(signs, x.sizes(), {.dtype = DType::f64})));
}

ValueTensors StepBounds::moved_inputs(const ValueTensors& inputs, const std::vector<Tensor>& errors, const Move& by,
                                      int sample) {
  ValueTensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i].second;
    all.emplace_back(inputs[i].first, moves(t) ? moved(t, errors[i], by, sample) : clone(t));
  }
  return all;
}

// Of sums of products: (n u) of the sum of magnitudes, and the operands' own errors.
std::vector<Tensor> StepBounds::of_sum(const pt2::Step& step, const ValueTensors& inputs,
                                       const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                       const Units& units, double terms) {
  ValueTensors magnitudes;
  ValueTensors wide;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& [id, t] = inputs[i];
    const Tensor size = moves(t) ? abs(t) : t;
    magnitudes.emplace_back(id, size);
    Tensor more = moves(t) ? add(mul(size, 1 + units.store), units.least) : t;
    if (moves(t) && errors[i].defined()) more = add(more, errors[i]);
    wide.emplace_back(id, more);
  }
  const ValueTensors sums = evaluate(step, magnitudes);
  const ValueTensors moved = evaluate(step, wide);
  const double gamma = terms * units.sum / (1 - std::min(0.5, terms * units.sum));
  std::vector<Tensor> bounds;
  for (const auto& [id, y] : outputs) {
    if (!moves(y)) {  // sums of integers are exact
      bounds.emplace_back();
      continue;
    }
    const Tensor carried = sub(of(moved, id), of(sums, id));
    bounds.push_back(add(add(mul(of(sums, id), gamma), carried), add(mul(abs(y), 2 * units.store), units.least)));
  }
  return bounds;
}

std::vector<Tensor> StepBounds::of_outputs(const pt2::Step& step, const ValueTensors& inputs,
                                           const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                           const Units& units) {
  const NoGrad no_grad;
  const bool exact_inputs = std::ranges::none_of(errors, [](const Tensor& e) { return e.defined(); });
  const bool arranges = only_arranges(step);
  if (arranges && exact_inputs) return std::vector<Tensor>(outputs.size());
  const Terms terms = terms_of(step, inputs, outputs);
  if (!arranges && terms.forward > 0) return of_sum(step, inputs, errors, outputs, units, terms.forward);
  double relative = arranges ? 0 : kElementwise * units.store;
  if (listed(kComposites, step.op->target)) {
    double row = 1;
    for (const auto& [id, t] : inputs)
      for (const std::int64_t n : t.sizes()) row = std::max(row, static_cast<double>(n));
    relative = kComposite * units.store + std::sqrt(row) * units.sum;
  }
  std::vector<Tensor> largest(outputs.size());
  std::vector<double> spread(outputs.size());
  for (int sample = 0; sample < kSamples; ++sample) {
    const ValueTensors moved =
        evaluate(step, moved_inputs(inputs, errors, {relative, arranges ? 0 : units.least}, sample));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!moves(outputs[i].second)) continue;
      const Tensor change = distance(of(moved, outputs[i].first), outputs[i].second);
      largest[i] = larger(largest[i], change);
      spread[i] = std::max(spread[i], root_mean_square(change));
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!largest[i].defined()) continue;
    largest[i] = mul(largest[i], kSafety);
    if (!arranges) largest[i] = add(add(largest[i], spread[i]), mul(abs(outputs[i].second), 2 * units.store));
    largest[i] = where(isfinite(outputs[i].second), largest[i], 0);
  }
  return largest;
}

std::vector<Tensor> StepBounds::gradients(const pt2::Step& step, const ValueTensors& inputs,
                                          const ValueTensors& gradients) {
  ValueTensors leaves;
  std::vector<Tensor> wanted;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensor t = inputs[i].second;
    if (moves(t)) {
      t = t.detach();
      t = add(t, 0.0).detach();
      t.set_requires_grad(true);
      wanted.push_back(t);
      places.push_back(i);
    }
    leaves.emplace_back(inputs[i].first, t);
  }
  const ValueTensors outputs = evaluate(step, leaves);
  std::vector<Tensor> roots;
  std::vector<Tensor> weights;
  for (const auto& [id, g] : gradients) {
    const Tensor& y = of(outputs, id);
    if (!g.defined() || !y.defined() || !y.requires_grad()) continue;
    roots.push_back(y);
    weights.push_back(g);
  }
  std::vector<Tensor> results(inputs.size());
  if (roots.empty() || wanted.empty()) return results;
  const std::vector<Tensor> found = autograd::grad(roots, wanted, weights, {.allow_unused = true});
  for (std::size_t k = 0; k < found.size(); ++k)
    if (found[k].defined()) results[places[k]] = found[k].detach();
  return results;
}

std::vector<Tensor> StepBounds::of_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                             const std::vector<Tensor>& errors, const ValueTensors& given,
                                             const std::vector<Tensor>& gradient_errors,
                                             const std::vector<Tensor>& results, const Units& units) {
  const Terms terms = terms_of(step, inputs, given);
  const bool arranges = only_arranges(step) && terms.backward == 0;
  std::vector<Tensor> bounds(inputs.size());
  const bool products = terms.forward > 0;
  double relative = arranges ? 0 : kElementwise * units.store;
  double repeated = 1;  // elements of the output for each of the smallest input
  double row = 1;
  for (const auto& [id, t] : inputs) {
    if (!moves(t)) continue;
    repeated = std::max(repeated, static_cast<double>(given[0].second.numel()) /
                                      static_cast<double>(std::max<std::int64_t>(1, t.numel())));
    for (const std::int64_t n : t.sizes()) row = std::max(row, static_cast<double>(n));
  }
  if (listed(kComposites, step.op->target)) relative = kComposite * units.store + std::sqrt(row) * units.sum;
  const double of_gradient = relative + std::sqrt(repeated) * units.sum + (arranges ? 0 : units.store);
  const double least = arranges ? 0 : units.least;
  std::vector<double> spread(inputs.size());
  for (int sample = 0; sample < (products ? 1 : kSamples); ++sample) {
    ValueTensors cotangents;
    ValueTensors base_cotangents;
    for (std::size_t i = 0; i < given.size(); ++i) {
      const Tensor g = products ? abs(given[i].second) : given[i].second;
      const double by = products ? units.store : of_gradient;
      base_cotangents.emplace_back(given[i].first, g);
      cotangents.emplace_back(given[i].first, moved(g, gradient_errors[i], {by, least}, sample));
    }
    ValueTensors base = inputs;
    if (products)
      for (auto& [id, t] : base)
        if (moves(t)) t = abs(t);
    const ValueTensors at = moved_inputs(base, errors, {products ? units.store : relative, least}, sample);
    const std::vector<Tensor> other = gradients(step, at, cotangents);
    const std::vector<Tensor> sums = products ? gradients(step, base, base_cotangents) : std::vector<Tensor>{};
    const double gamma = terms.backward * units.sum / (1 - std::min(0.5, terms.backward * units.sum));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!results[i].defined() || !other[i].defined()) continue;
      const Tensor change = distance(other[i], products ? sums[i] : results[i]);
      bounds[i] = products ? add(change, mul(abs(sums[i]), gamma)) : larger(bounds[i], change);
      spread[i] = std::max(spread[i], root_mean_square(change));
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!bounds[i].defined()) continue;
    if (!products) bounds[i] = add(mul(bounds[i], kSafety), spread[i]);
    if (!arranges) bounds[i] = add(bounds[i], add(mul(abs(results[i]), 2 * units.store), units.least));
  }
  return bounds;
}

}  // namespace gradual::lab
