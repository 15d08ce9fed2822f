#include "judge_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "../autograd/autograd.h"
#include "../autograd/grad_mode.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_attention.h"
#include "judge_ties.h"

namespace gradual::lab {
namespace {

constexpr int kSamples = 5;         // all operands up, all down, every other one up, the others up, and at random
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

// Ops whose derivative jumps. Where an operand is at the jump, or nearer than its error, either side may be taken.
constexpr std::string_view kKinks[] = {"aten.relu",        "aten.hardtanh.",    "aten.abs.",        "aten.clamp",
                                       "aten.maximum.",    "aten.minimum.",     "aten.max.other",   "aten.min.other",
                                       "aten.fmax.",       "aten.fmin.",        "aten.leaky_relu.", "aten.prelu.",
                                       "aten.hardswish.",  "aten.hardsigmoid.", "aten.threshold.",  "aten.hardshrink.",
                                       "aten.softshrink.", "aten.elu.",         "aten.selu.",       "aten.celu."};
// Far less than an operand may be rounded by: it moves only those that are at the jump.
constexpr double kAside = 0x1p-50;
constexpr double kAsideOfZero = 0x1p-1000;

constexpr std::string_view kRandom[] = {"aten.dropout.",     "aten.feature_dropout.", "aten.rand",  "aten.bernoulli",
                                        "aten.multinomial.", "aten.uniform",          "aten.normal"};

template <std::size_t N> bool listed(const std::string_view (&list)[N], const std::string& target) {
  return std::ranges::any_of(list, [&](std::string_view start) { return target.starts_with(start); });
}

// Operand `place` goes up or down in this sample; 0: each element at random.
int direction(int sample, std::size_t place) {
  const bool even = place % 2 == 0;
  if (sample == 0) return 1;
  if (sample == 1) return -1;
  if (sample == 2) return even ? 1 : -1;
  if (sample == 3) return even ? -1 : 1;
  return 0;
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

// softmax along the last dim, of floats.
bool is_softmax(const pt2::Step& step, const ValueTensors& inputs) {
  const std::string& target = step.op->target;
  if (!target.starts_with("aten.softmax.") && !target.starts_with("aten._softmax.")) return false;
  const std::int64_t* const dim = step.arguments.size() > 1 ? step.arguments[1].get<std::int64_t>() : nullptr;
  if (!dim || inputs.size() != 1 || !moves(inputs[0].second)) return false;
  return *dim == -1 || *dim == inputs[0].second.dim() - 1;
}

// The elements of x at the places that argmax, argsort and their like chose; undefined for others.
Tensor chosen_values(const pt2::Step& step, const Tensor& x, const Tensor& places) {
  const std::int64_t* const given = step.arguments.size() > 1 ? step.arguments[1].get<std::int64_t>() : nullptr;
  const Tensor index = cast(places, DType::i64);
  if (!given) return reshape(gather(flatten(x), 0, flatten(index)), places.sizes());
  const int dim = static_cast<int>(*given < 0 ? *given + x.dim() : *given);
  const bool dropped = places.dim() + 1 == x.dim();
  if (!dropped && places.dim() != x.dim()) return {};
  const Tensor values = gather(x, dim, dropped ? unsqueeze(index, dim) : index);
  return dropped ? squeeze(values, dim) : values;
}

// What is added to the scores; undefined: nothing.
Tensor added_mask(const Tensor& mask, bool causal, const Tensor& q, const Tensor& k) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const auto added = [](const Tensor& allowed) {
    return masked_fill(zeros(allowed.sizes(), {.dtype = DType::f64}), logical_not(allowed), kNever);
  };
  if (causal) return added(cast(tril(ones({q.size(-2), k.size(-2)})), DType::bool_));
  if (!mask.defined()) return {};
  return mask.is_floating() ? mask : added(mask);
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

std::optional<StepBounds::Attention> StepBounds::attention_of(const pt2::Step& step, const ValueTensors& inputs,
                                                              const std::vector<Tensor>& errors) {
  if (!step.op->target.starts_with("aten.scaled_dot_product_attention.")) return std::nullopt;
  const auto id_of = [&](std::size_t argument) {
    const pt2::Ref* const r = step.arguments[argument].get<pt2::Ref>();
    return r ? r->id : -1;
  };
  const auto error_of = [&](int id) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].first == id) return errors[i];
    return Tensor();
  };
  Attention a;
  a.q = id_of(0);
  a.k = id_of(1);
  a.v = id_of(2);
  a.step.q = of(inputs, a.q);
  a.step.k = of(inputs, a.k);
  a.step.v = of(inputs, a.v);
  if (!moves(a.step.q) || !moves(a.step.k) || !moves(a.step.v)) return std::nullopt;
  a.step.q_error = error_of(a.q);
  a.step.k_error = error_of(a.k);
  a.step.v_error = error_of(a.v);
  const int mask = id_of(3);
  const bool* const causal = step.arguments[5].get<bool>();
  const Tensor given = of(inputs, mask);
  a.step.mask = added_mask(given, causal && *causal, a.step.q, a.step.k);
  if (moves(given)) {
    a.mask = mask;
    a.step.mask_error = error_of(mask);
  }
  const double* const scale = step.arguments[6].get<double>();
  a.step.scale = scale ? *scale : 1 / std::sqrt(static_cast<double>(a.step.q.size(-1)));
  return a;
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

// x + s (error + relative |x| + least), with s = 1, -1 or random signs.
Tensor StepBounds::moved(const Tensor& x, const Tensor& error, const Move& move, int direction) {
  Tensor by = add(mul(abs(x), move.relative), move.least);
  if (error.defined()) by = add(by, error);
  by = where(isfinite(x), by, 0);  // a mask of -Inf stays
  if (direction != 0) return add(x, mul(by, direction));
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
    all.emplace_back(inputs[i].first, moves(t) ? moved(t, errors[i], by, direction(sample, i)) : clone(t));
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
  if (const std::optional<Attention> a = attention_of(step, inputs, errors)) return {attention_bound(a->step, units)};
  if (is_softmax(step, inputs)) return {softmax_bound(inputs[0].second, errors[0], units)};
  const bool arranges = only_arranges(step);
  if (chooses(step) && exact_inputs) return contested_places(step, inputs, errors, outputs);
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
      const Tensor& y = outputs[i].second;
      if (!moves(y)) {  // comparisons, and numbers rounded to integers
        const Tensor other = of(moved, outputs[i].first);
        if (other.sizes() == y.sizes()) largest[i] = larger(largest[i], cast(ne(other, y), DType::f64));
        continue;
      }
      const Tensor change = distance(of(moved, outputs[i].first), y);
      largest[i] = larger(largest[i], change);
      spread[i] = std::max(spread[i], root_mean_square(change));
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!largest[i].defined() || !moves(outputs[i].second)) continue;
    largest[i] = mul(largest[i], kSafety);
    if (!arranges) largest[i] = add(add(largest[i], spread[i]), mul(abs(outputs[i].second), 2 * units.store));
    largest[i] = where(isfinite(outputs[i].second), largest[i], 0);
  }
  if (!chooses(step)) return largest;
  const std::vector<Tensor> contested = contested_places(step, inputs, errors, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (!moves(outputs[i].second)) largest[i] = contested[i];
  return largest;
}

// Of the places that a step chose, those that may be other ones. Values have no entry.
std::vector<Tensor> StepBounds::contested_places(const pt2::Step& step, const ValueTensors& inputs,
                                                 const std::vector<Tensor>& errors, const ValueTensors& outputs) {
  std::vector<Tensor> contested(outputs.size());
  if (inputs.empty() || !inputs[0].second.defined()) return contested;
  const Tensor x = cast(inputs[0].second, DType::f64);
  // Of integers, the first result has the values if there are two.
  const bool has_values = outputs.size() == 2 || (outputs.size() == 1 && moves(outputs[0].second));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& places = outputs[i].second;
    if (moves(places) || (has_values && i == 0)) continue;
    const Tensor chosen = has_values ? cast(outputs[0].second, DType::f64) : chosen_values(step, x, places);
    if (chosen.defined() && chosen.sizes() == places.sizes())
      contested[i] = contested_choice(step, x, errors[0], chosen);
  }
  return contested;
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
  if (const std::optional<Attention> a = attention_of(step, inputs, errors))
    return of_attention_gradients(*a, inputs, given[0].second, gradient_errors[0], units);
  std::vector<Tensor> bounds(inputs.size());
  if (is_softmax(step, inputs)) {
    bounds[0] = softmax_gradient_bound(inputs[0].second, errors[0], given[0].second, gradient_errors[0], units);
    bounds[0] = add(bounds[0], mul(abs(results[0]), 2 * units.store));
    return bounds;
  }
  if (chooses(step)) return of_choice_gradients(step, inputs, errors, given, gradient_errors, units);
  const Terms terms = terms_of(step, inputs, given);
  if (terms.forward > 0)
    return of_product_gradients(step, inputs, errors, given, gradient_errors, results, units, terms.backward);
  return of_sampled_gradients(step, inputs, errors, given, gradient_errors, results, units);
}

// Of sums of products, as of_sum: the gradients are such sums themselves.
std::vector<Tensor> StepBounds::of_product_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                                     const std::vector<Tensor>& errors, const ValueTensors& given,
                                                     const std::vector<Tensor>& gradient_errors,
                                                     const std::vector<Tensor>& results, const Units& units,
                                                     double terms) {
  const Move move{units.store, units.least};
  constexpr int kUp = 1;
  ValueTensors base = inputs;
  for (auto& [id, t] : base)
    if (moves(t)) t = abs(t);
  ValueTensors base_cotangents;
  ValueTensors cotangents;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Tensor g = abs(given[i].second);
    base_cotangents.emplace_back(given[i].first, g);
    cotangents.emplace_back(given[i].first, moved(g, gradient_errors[i], move, kUp));
  }
  const std::vector<Tensor> wide = gradients(step, moved_inputs(base, errors, move, 0), cotangents);
  const std::vector<Tensor> sums = gradients(step, base, base_cotangents);
  const double gamma = terms * units.sum / (1 - std::min(0.5, terms * units.sum));
  std::vector<Tensor> bounds(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!results[i].defined() || !wide[i].defined()) continue;
    const Tensor carried = distance(wide[i], sums[i]);
    const Tensor stored = add(mul(abs(results[i]), 2 * units.store), units.least);
    bounds[i] = add(add(carried, mul(abs(sums[i]), gamma)), stored);
  }
  return bounds;
}

// Of other ops: the largest changes when operands and gradients are moved.
std::vector<Tensor> StepBounds::of_sampled_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                                     const std::vector<Tensor>& errors, const ValueTensors& given,
                                                     const std::vector<Tensor>& gradient_errors,
                                                     const std::vector<Tensor>& results, const Units& units) {
  const bool arranges = only_arranges(step);
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
  const double least = arranges ? 0 : units.least;
  const Move of_gradient{relative + std::sqrt(repeated) * units.sum + (arranges ? 0 : units.store), least};
  const bool jumps = arranges && listed(kKinks, step.op->target);
  const Move of_operand = jumps ? Move{kAside, kAsideOfZero} : Move{relative, least};
  std::vector<Tensor> bounds(inputs.size());
  std::vector<double> spread(inputs.size());
  for (int sample = 0; sample < kSamples; ++sample) {
    ValueTensors cotangents;
    for (std::size_t i = 0; i < given.size(); ++i)
      cotangents.emplace_back(given[i].first,
                              moved(given[i].second, gradient_errors[i], of_gradient, direction(sample, i)));
    const std::vector<Tensor> other = gradients(step, moved_inputs(inputs, errors, of_operand, sample), cotangents);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!results[i].defined() || !other[i].defined()) continue;
      const Tensor change = distance(other[i], results[i]);
      bounds[i] = larger(bounds[i], change);
      spread[i] = std::max(spread[i], root_mean_square(change));
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!bounds[i].defined()) continue;
    bounds[i] = mul(bounds[i], kSafety);
    if (!arranges) bounds[i] = add(add(bounds[i], spread[i]), add(mul(abs(results[i]), 2 * units.store), units.least));
  }
  return bounds;
}

// The gradient goes to the chosen elements, or to those that are as large. Those of several windows are added up.
std::vector<Tensor> StepBounds::of_choice_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                                    const std::vector<Tensor>& errors, const ValueTensors& given,
                                                    const std::vector<Tensor>& gradient_errors, const Units& units) {
  std::vector<Tensor> bounds(inputs.size());
  const ValueTensors outputs = evaluate(step, inputs);
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto& [id, g] = given[i];
    if (!moves(of(outputs, id)) || !g.defined()) continue;
    const Tensor size = gradient_errors[i].defined() ? add(abs(g), gradient_errors[i]) : abs(g);
    const Tensor times = gradients(step, inputs, {{id, ones_like(g)}})[0];
    if (!times.defined()) continue;
    const Tensor additions = where(gt(times, 1), times, 0);
    const Tensor added = gradients(step, inputs, {{id, size}})[0];
    Tensor bound = mul(mul(added, additions), units.store);
    if (gradient_errors[i].defined()) bound = add(bound, gradients(step, inputs, {{id, gradient_errors[i]}})[0]);
    const Tensor contested = contested_gradient(step, inputs[0].second, errors[0], of(outputs, id), size);
    if (contested.defined()) bound = add(bound, contested);
    bounds[0] = bounds[0].defined() ? add(bounds[0], bound) : bound;
  }
  return bounds;
}

std::vector<Tensor> StepBounds::of_attention_gradients(const Attention& attention, const ValueTensors& inputs,
                                                       const Tensor& gradient, const Tensor& gradient_error,
                                                       const Units& units) {
  const AttentionGradientBounds found = attention_gradient_bounds(attention.step, gradient, gradient_error, units);
  std::vector<Tensor> bounds(inputs.size());
  const auto give = [&](int id, const Tensor& bound) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].first == id && bound.defined()) bounds[i] = bounds[i].defined() ? add(bounds[i], bound) : bound;
  };
  give(attention.q, found.q);
  give(attention.k, found.k);
  give(attention.v, found.v);
  if (attention.mask >= 0) give(attention.mask, found.mask);
  return bounds;
}

}  // namespace gradual::lab
