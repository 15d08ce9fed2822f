#include "quantization.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "../autograd/activation_checkpoint.h"
#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "../core/ops/compute_mode.h"
#include "../core/ops/conv_by_gemm.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/f8_operands.h"
#include "../core/ops/ops.h"
#include "../core/quantize/quantize_part.h"
#include "../core/quantize/quantizer_kernels.h"
#include "../core/support/throwf.h"
#include "bookkeeping.h"
#include "cast_stats.h"
#include "product_transform.h"
#include "quantization_parts.h"
#include "whole_operands.h"

namespace gradual::amp {
namespace {

using Site = QuantizationState::Site;

// One operand of a product. Its amax history is in the product's Site.
struct ProductOperand {
  const Tensor* tensor = nullptr;
  int input = 0;  // of the call
  Role role = Role::activation;
  QuantizeFor use = QuantizeFor::evaluation;
  const Quantizer* quantizer = nullptr;  // null: high precision
  std::optional<Tensor> saved = {};      // the scale of what forward saved as codes
  std::optional<int> channel = {};       // the dim of the channels that are scaled (Quantization::smooth)
  bool is_part = false;                  // outlier channels, or the others
  bool is_counted = true;                // in the statistics of casts
};

// The roles determine which of the three products it is; other combinations occur only in gradients of gradients.
const Quantizer* quantizer_of(const Quantization& q, Role role, Role other) {
  const bool second = role == Role::error ? other != Role::weight : other == Role::error;
  const auto& quantizer = q.*kOperandQuantizers[static_cast<int>(role)][second];
  return quantizer ? &*quantizer : nullptr;
}

bool draws_signs(const Quantizer& q) { return q.hadamard && q.signs == HadamardSigns::drawn; }
bool by_chance(const std::optional<Quantizer>& q) { return q && (is_random(*q) || draws_signs(*q)); }
// f32 unchanged: nothing to round.
bool is_identity(const Quantizer& q) {
  return is_any<NoScale>(q.scaling) && q.format == Format::ieee(8, 23) && !q.hadamard && !q.center;
}

Quantizer plain_quantizer(const Quantizer& quantizer, const Quantization& q) {
  Quantizer plain = untransformed(quantizer);
  plain.overflow = q.overflow.value_or(plain.overflow);
  return plain;
}

// True if both round to the same numbers.
bool rounds_alike(std::optional<Quantizer> a, const Quantizer& b) {
  if (a) a->gradient = b.gradient;
  return a == b;
}

// True if forward has looked for the Inf and NaN of an operand that backward rounds again.
bool seen_in_forward(const ProductOperand& o, Site& site) {
  const std::optional<Quantizer>& forward = (*site.quantization).*kOperandQuantizers[static_cast<int>(o.role)][0];
  if (o.role == Role::error || changes_numbers(*o.quantizer) || !forward || is_identity(*forward)) return false;
  return site.state->hides(plain_quantizer(*forward, *site.quantization));
}

bool is_frozen(const QuantizationState& state) { return state.purpose == QuantizationState::Purpose::evaluation; }

// Forward stages the amaxes of its operands, backward those of errors, each once. Operands of forward are rounded again
// with the scale of the first time.
QuantizeFor use_in_forward(const QuantizationState& state, bool recorded) {
  if (recomputing()) return QuantizeFor::later_use;
  if (!recorded) return QuantizeFor::evaluation;
  return is_frozen(state) ? QuantizeFor::first_use_frozen : QuantizeFor::first_use;
}
QuantizeFor use_of_errors(const QuantizationState& state) {
  return is_frozen(state) ? QuantizeFor::evaluation : QuantizeFor::one_use;
}
QuantizeFor use_of(Role role, const QuantizationState& state, bool unrecorded) {
  const RewriteContext& context = rewrite_context();
  const bool error = role == Role::error;
  if (context.gradient) return error ? use_of_errors(state) : QuantizeFor::later_use;
  if (recomputing() && error) return QuantizeFor::evaluation;
  return use_in_forward(state, context.recorded || unrecorded);
}

// The options of an operand's rounding along `axis`.
QuantizeOptions rounding_of(const ProductOperand& o, int axis, Site& site) {
  QuantizeOptions options{.axis = axis, .history = &(site.*kHistories[static_cast<int>(o.role)].second), .stats = {}};
  options.use = o.use;
  if (is_random(*o.quantizer)) options.key = rewrite_key();
  if (CastTally* const tally = o.is_counted ? cast_tally(o.role, site.name) : nullptr) {
    options.stats = {&tally->counts, &tally->exponents};
    options.scaled_exponents = true;
  }
  return options;
}

void look_at(const ProductOperand& o, const Tensor& t, const Quantizer& plain, QuantizeFor use, Site& site) {
  if (keeps_scale(use) || (rewrite_context().gradient && !seen_in_forward(o, site))) site.state->look_at(t, plain);
}

// Nothing to round.
bool stays(const ProductOperand& o) { return o.saved || !o.quantizer || is_identity(*o.quantizer); }

// The powers of two by which the channels of an operand are divided before it is rounded: f32, of its dims, 1 along all
// but `channel`. Those that a quantizer with one scale per channel has.
Tensor channel_scales(const Tensor& t, int channel, const Format& format) {
  const StageScope unseen(chain().observe, nullptr);  // rounds no operand
  const Quantizer by_channel{
      .format = format, .overflow = Overflow::saturate, .scaling = RowScale{.power_of_two = true}};
  const Tensor rows = t.detach().transpose(channel, -1).reshape({-1, t.size(channel)});
  return along_dim(quantize_operand(rows, by_channel, {.axis = 0}).scale, t.dim(), channel);
}

// Whether the gradient of the operand that is rounded is more than straight-through.
bool bends_gradient(const ProductOperand& o) {
  const RewriteContext& context = rewrite_context();
  return !context.gradient && context.recorded && o.quantizer->gradient != QuantizerGradient::straight;
}

Tensor slopes_of(const Tensor& t, const Quantizer& plain, const QuantizeOptions& options, const PartOf& layout) {
  const StageScope unseen(chain().observe, nullptr);  // rounds no operand
  return slopes_of_part(t, plain, options, layout);
}

// The parameter of an operand's learned scale; Error if it has none.
const Tensor& step_of(Role role, const Site& site) {
  const Tensor& step = role == Role::activation ? site.x_step : site.w_step;
  if (step.defined()) return step;
  throwf(
      "quantization: {} has no learned scale: an amp::RecipeRun registers scales for the weights of a model that are "
      "parameters of at least two dims; leave other products out by `modules`",
      site.name == SiteName() ? "the model" : to_string(site.name));
}

// Puts the scale of a learned step into the history. A step without a first value has that of this call: after the
// outermost region (or the step of all shards) the largest one of the calls since is the parameter's.
void find_step(const ProductOperand& o, const Tensor& t, const QuantizeOptions& options, Site& site) {
  if (!is_any<LearnedScale>(o.quantizer->scaling) || o.use == QuantizeFor::later_use) return;
  const StageScope unseen(chain().observe, nullptr);
  const NoGrad off;
  const AccumulatorScope exact(std::nullopt);
  AmaxHistory& history = *options.history;
  double step = step_of(o.role, site).item<double>();
  if (step == 0 && t.numel() > 0) {
    const double magnitude = mean(abs(t.to(DType::f32))).item<double>();
    step = first_step(magnitude, o.quantizer->format);
    if (stages_amax(o.use) && magnitude > 0 && std::isfinite(magnitude)) history.stage(step);
  }
  history.scale = step == 0 ? 1 : scale_of_step(step);
}

// The elements of a weight, or the features of a sample: those of x in all dims but the first one.
std::int64_t elements_of(Role role, const Tensor& t) {
  if (role == Role::weight || t.dim() < 2) return t.numel();
  return t.size(0) == 0 ? 1 : t.numel() / t.size(0);
}

// Tells the rewrite what the gradient of a rounded operand becomes.
void note_gradient(const ProductOperand& o, const Tensor& t, const Quantizer& plain, const QuantizeOptions& options,
                   const PartOf& layout, const QuantizedOperand& result) {
  const RewriteContext& context = rewrite_context();
  const bool learns = is_any<LearnedScale>(plain.scaling) && !context.gradient && context.recorded;
  if (!learns && !bends_gradient(o)) return;
  OperandGradient gradient;
  if (bends_gradient(o)) gradient.slopes = slopes_of(t, plain, options, layout);
  if (learns) {
    const StageScope unseen(chain().observe, nullptr);
    const Tensor u = mul(t.to(DType::f32), options.history->used);
    gradient.direction = sub(result.values, gradient.slopes.defined() ? mul(u, gradient.slopes) : u);
    gradient.parameter = o.role == Role::activation ? 0 : 1;
    gradient.factor = step_gradient_scale(elements_of(o.role, t), plain.format);
  }
  set_gradient(o.input, std::move(gradient));
}

// Keeps an operand for backward as numbers that are not rounded.
void keep_unrounded(const ProductOperand& o, const Tensor& t) {
  const Quantizer f32{.format = Format::ieee(8, 23), .overflow = Overflow::ieee};
  save_as_codes(o.input, quantize(t.to(DType::f32), f32), true);
}

// Rounds an operand along `axis`, unless it was saved as codes.
QuantizedOperand rounded(const ProductOperand& o, const Tensor& t, int axis, Site& site, const PartOf& layout = {}) {
  if (o.saved) return {t, *o.saved};
  const RewriteContext& context = rewrite_context();
  const bool requantized = site.quantization->requantize && !context.gradient && context.recorded;
  if (stays(o)) {
    if (o.is_part && requantized) keep_unrounded(o, t);
    return {t.dtype() == DType::f64 ? t : t.to(DType::f32), {}};
  }
  QuantizeOptions options = rounding_of(o, axis, site);
  const Quantizer plain = plain_quantizer(*o.quantizer, *site.quantization);
  look_at(o, t, plain, options.use, site);
  if (o.channel && t.dim() >= 2) {
    const Tensor scales = channel_scales(t, *o.channel, plain.format);
    const Tensor even = div(t.to(DType::f32), scales);
    QuantizedOperand result = quantize_part(even, plain, options, layout);
    if (bends_gradient(o)) set_gradient(o.input, {.slopes = slopes_of(even, plain, options, layout)});
    result.values = mul(result.values, scales);
    return result;
  }
  find_step(o, t, options, site);
  QuantizedOperand result = quantize_part(t, plain, options, layout);
  note_gradient(o, t, plain, options, layout, result);
  if (!requantized) return result;
  // the same codes
  options.use = QuantizeFor::later_use;
  options.stats = {};
  save_as_codes(o.input, quantize(t, plain, options), true);
  return result;
}

// Saves forward's operands with one scale per tensor as codes, if backward uses the same quantizer.
// Not where noise is measured, which needs the operands themselves, unless these would be drawn again.
void save_codes(const Quantization& q, const ProductOperand& o, const QuantizedOperand& v, bool measures) {
  if (!q.save_codes || o.is_part || !o.quantizer || rewrite_context().gradient || !rewrite_context().recorded) return;
  if (measures && !is_random(*o.quantizer)) return;
  if (!rounds_alike(q.*kOperandQuantizers[static_cast<int>(o.role)][1], *o.quantizer) || is_identity(*o.quantizer))
    return;
  const Format format = detail::rounded_format(*o.quantizer);
  if (!per_tensor(o.quantizer->scaling) || changes_numbers(*o.quantizer) || o.channel || format.bits() > 16) return;
  // The values are the codes' own: encoding them is exact in any mode.
  QuantizedTensor codes = quantize(v.values, format, {}, Overflow::ieee);
  if (v.scale.defined()) codes.scales = as_strided(v.scale, {1, 1}, {1, 1}, v.scale.offset());
  codes.scale_format = Format::ieee(8, 23);
  save_as_codes(o.input, std::move(codes));
}

// The elements of a group that the transform of a product's operands negates.
std::vector<bool> negated(const Quantizer& q) {
  return q.signs == HadamardSigns::drawn ? drawn_signs(q.hadamard, rewrite_key()) : fixed_signs(q.hadamard);
}

// In place: y is a product's own result.
Tensor scaled(const Tensor& y, const Tensor& scale) { return scale.defined() ? y.mul_(scale) : y; }

// The f8 dtype of an operand that a backend may multiply by f8 instructions: at most one scale per tensor.
std::optional<DType> f8_of(const ProductOperand& o) {
  if (!o.quantizer || !per_tensor(o.quantizer->scaling) || o.channel) return {};
  const std::optional<DType> dtype = dtype_of_format(o.quantizer->format);
  return dtype && is_f8(*dtype) ? dtype : std::nullopt;
}

// The product of these inputs times the scales, which may have been shaped to its dims.
Tensor multiplied(OpId op, TensorRefs inputs, const ProductOperand& a, const Tensor& scale_a, const ProductOperand& b,
                  const Tensor& scale_b) {
  const Loc here = Loc::current();
  const std::optional<DType> left = f8_of(a);
  const std::optional<DType> right = f8_of(b);
  if (fast_f8() && left && right) {
    const auto floats = [](const Tensor& t) { return t.defined() ? static_cast<const float*>(t.raw()) : nullptr; };
    const Attrs codes = F8Attrs{*left, *right, floats(scale_a), floats(scale_b)};
    if (suits({op, inputs, &codes, here})) return dispatch1(op, inputs, codes, here);
  }
  return scaled(scaled(dispatch1(op, inputs, {}, here), scale_a), scale_b);
}

const Tensor& whole_of(const WholeOperands& whole, Role role) {
  if (role == Role::activation) return whole.x;
  return role == Role::weight ? whole.weight : whole.dy;
}

// absmax_tensor() of the operand of which this one is a part, as it is rounded. Undefined: it is whole, or its scales
// are not of a tensor. signs: of the transform; empty: none.
Tensor amax_of_whole(const ProductOperand& o, const ProductOperand& other, const std::vector<bool>& signs) {
  const std::shared_ptr<WholeOperands>& whole = whole_operands();
  if (!whole || stays(o)) return {};
  if (is_any<LearnedScale>(o.quantizer->scaling))
    throw_error("parts of an operand agree on an amax, not on a learned scale; let each part have its own scales");
  const bool range = is_any<TensorRange>(o.quantizer->scaling);
  if (!range && !is_any<TensorScale, DelayedScale, Nvfp4Blocks, EdenBlocks>(o.quantizer->scaling)) return {};
  if (o.channel)
    throw_error(
        "smooth: parts of an operand agree on an amax, not on scales of channels; leave the module out of the split, "
        "or take a recipe with current scales and let each part have its own");
  if (range || o.quantizer->center)
    throw_error(
        "parts of an operand agree on an amax: not on a range with a zero point, and not on a mean; let each part have "
        "its own scales");
  const Tensor& all = whole_of(*whole, o.role);
  if (!all.defined()) return {};
  if (signs.empty()) return absmax_tensor(all);
  const bool wgrad = o.role != Role::weight && other.role != Role::weight;
  const bool along_first = wgrad || (o.role == Role::weight && other.role == Role::error);
  return absmax_tensor(transformed(all.reshape({-1, all.size(-1)}), along_first ? 0 : -1, signs));
}

// Both operands of a product, transformed if their quantizers say so, and rounded along the contracted axes.
std::pair<QuantizedOperand, QuantizedOperand> operands(const Quantization& q, const ProductOperand& a, int axis_a,
                                                       const ProductOperand& b, int axis_b, Site& site) {
  const bool transforms = a.quantizer && b.quantizer && a.quantizer->hadamard && b.quantizer->hadamard;
  const std::vector<bool> signs = transforms ? negated(*a.quantizer) : std::vector<bool>();
  const auto operand = [&](const ProductOperand& o, const ProductOperand& other, int axis) {
    const Tensor& t = *o.tensor;
    return rounded(o, transforms ? transformed(t, axis, signs) : t, axis, site,
                   {.amax = amax_of_whole(o, other, signs)});
  };
  QuantizedOperand x = operand(a, b, axis_a);
  QuantizedOperand w = operand(b, a, axis_b);
  save_codes(q, a, x, site.state->measures);
  save_codes(q, b, w, site.state->measures);
  return {std::move(x), std::move(w)};
}

// a [.., m, k] b [.., k, n], as its quantizers' transforms and roundings say.
Tensor product_as_is(const Quantization& q, const ProductOperand& a, const ProductOperand& b, Site& site) {
  const auto [x, w] = operands(q, a, -1, b, b.tensor->dim() == 1 ? -1 : -2, site);
  // Row scales have their operand's dims; a product with a vector has one dim less.
  const auto fitting = [](const Tensor& scale, const Tensor& other, int dim) {
    return scale.defined() && scale.dim() > 0 && other.dim() == 1 ? squeeze(scale, std::max(dim, -scale.dim())) : scale;
  };
  const Tensor* const values[] = {&x.values, &w.values};
  return multiplied(OpId::matmul, TensorRefs(values, 2), a, fitting(x.scale, *b.tensor, -1), b,
                    fitting(w.scale, *a.tensor, -2));
}

// No samples have no mean.
bool centers(const ProductOperand& o) {
  return o.quantizer && o.quantizer->center && !o.saved && o.tensor->numel() > 0;
}

// The operand's numbers in f32; those of an operand that was saved as codes are its values times their scale.
Tensor numbers_of(const ProductOperand& o) {
  const Tensor values = o.tensor->to(DType::f32);
  return o.saved && o.saved->defined() ? mul(values, *o.saved) : values;
}

// The mean over the samples, f32 and of the operand's dims, 1 along them. `contracted`: the samples lie along the
// contracted axis (wgrad); else along all other axes.
Tensor mean_of(const Tensor& t, int axis, bool contracted) {
  const AccumulatorScope exact(std::nullopt);
  const int k = wrap_dim(axis, t.dim(), "center");
  Tensor means = t.to(DType::f32);
  for (int d = 0; d < t.dim(); ++d)
    if ((d == k) == contracted) means = mean(means, {d}, true);
  return means;
}

// What the means of the operands contribute to their product, computed in f32 by sums. For a = a' + A and b = b' + B,
// a b = a' b' + A b + a' B.
struct Centered {
  ProductOperand a, b;  // without their means
  Tensor rest;          // A b + a' B; undefined without means

  // a [.., m, k] and b [.., k, n], or with `rows` b [n, k].
  Centered(const ProductOperand& left, const ProductOperand& right, bool rows) : a(left), b(right) {
    const bool samples_contracted =
        left.role != Role::weight && right.role != Role::weight && left.role != right.role;  // wgrad
    if (left.tensor->dim() < 2 || right.tensor->dim() < 2)
      throwf("a product of {} and {}: center needs operands of at least two dims", to_string(left.tensor->sizes()),
             to_string(right.tensor->sizes()));
    const AccumulatorScope exact(std::nullopt);
    const Tensor others = numbers_of(right);
    const Tensor columns = rows ? others.transpose(-1, -2) : others;
    if (centers(left)) {
      const Tensor mean = mean_of(*left.tensor, -1, samples_contracted);
      add(samples_contracted ? mul(mean, sum(columns, {-2}, true)) : of_row(mean, columns));
      numbers_[0] = sub(left.tensor->to(DType::f32), mean);
      a.tensor = &numbers_[0];
    }
    if (centers(right)) {
      const Tensor mean = mean_of(columns, -2, samples_contracted);
      const Tensor other = numbers_of(a);
      add(samples_contracted ? mul(sum(other, {-1}, true), mean)
                             : of_row(mean.transpose(-1, -2), other.transpose(-1, -2)).transpose(-1, -2));
      numbers_[1] = sub(columns, mean);
      if (rows) numbers_[1] = numbers_[1].transpose(-1, -2);
      b.tensor = &numbers_[1];
    }
  }
  Centered(const Centered&) = delete;
  Centered& operator=(const Centered&) = delete;

 private:
  // A row [1, k] times [.., k, n] as [.., 1, n], without a contraction, which observers would take for the product.
  static Tensor of_row(const Tensor& row, const Tensor& columns) {
    return sum(mul(row.reshape({-1, 1}), columns), {-2}, true);
  }
  void add(const Tensor& part) { rest = rest.defined() ? gradual::add(rest, part) : part; }

  Tensor numbers_[2];
};

// a [.., m, k] b [.., k, n].
Tensor product(const Quantization& q, const ProductOperand& a, const ProductOperand& b, Site& site) {
  if (centers(a) || centers(b)) {
    const Centered parts(a, b, false);
    return gradual::add(product_as_is(q, parts.a, parts.b, site), parts.rest);
  }
  return product_as_is(q, a, b, site);
}

Tensor linear_as_is(const Quantization& q, const ProductOperand& x, const ProductOperand& w, const Tensor& bias,
                    Site& site) {
  const auto [a, b] = operands(q, x, -1, w, -1, site);
  const Tensor added = bias.defined() ? bias.to(a.values.dtype()) : bias;
  if (!a.scale.defined() && !b.scale.defined()) return linear(a.values, b.values, added);
  const Tensor columns = b.scale.defined() && b.scale.dim() == 2 ? b.scale.reshape({-1}) : b.scale;
  const Tensor none;
  const Tensor* const values[] = {&a.values, &b.values, &none};
  const Tensor y = multiplied(OpId::linear, TensorRefs(values, 3), x, a.scale, w, columns);
  return added.defined() ? y.add_(added) : y;
}

Tensor linear_product(const Quantization& q, const ProductOperand& x, const ProductOperand& w, const Tensor& bias,
                      Site& site) {
  if (!centers(x) && !centers(w)) return linear_as_is(q, x, w, bias, site);
  const Centered parts(x, w, true);
  return gradual::add(linear_as_is(q, parts.a, parts.b, bias, site), parts.rest);
}

// A product of a convolution, whose contracted axis has the taps of the kernel outside and one dim of both operands
// innermost (core/ops/conv_by_gemm.h). Where blocks lie within that dim, or a tensor has one scale, rounding commutes
// with unfolding: the operand is rounded once and the ordinary convolution multiplies it. Other blocks lie across taps
// and are rounded as rows of the product.
struct ConvSite {
  const OpCall& call;
  const ConvAttrs& attrs;
  ConvAxis axis;
  Site& site;
};

// Whether an operand's blocks lie within the innermost dim.
bool lies_within(const Quantizer& q, std::int64_t innermost) {
  if (per_tensor(q.scaling)) return true;
  const int together = elements_together(q.scaling);
  return unit_of(q.scaling) == ScaleUnit::block && !has_tiles(q.scaling) && innermost % together == 0;
}

// The operand with groups of this size along its innermost dim transformed. Zeros fill the last group.
Tensor transformed_within(const Tensor& t, int dim, std::int64_t groups, const std::vector<bool>& signs) {
  const Tensor last = t.transpose(dim, -1);
  Shape sizes = last.sizes();
  sizes[3] = groups;
  sizes.push_back(t.size(dim) / groups);
  const Tensor done = transformed(last.reshape(sizes), -1, signs);
  sizes.erase(4);
  sizes[3] = groups * done.size(4);
  return done.reshape(sizes).transpose(dim, -1);
}

// Rounds the rows [groups m, k] of the operand that is not unfolded. Tiles lie within a group.
// slopes: of the quantizer's gradient, if that is not straight.
QuantizedOperand rounded_rows(const ProductOperand& o, const Tensor& rows, std::int64_t groups, Site& site,
                              Tensor& slopes) {
  const std::int64_t m = rows.size(0) / groups;
  if (!has_tiles(o.quantizer->scaling) || m % block_size(o.quantizer->scaling) == 0) groups = 1;
  const Quantizer plain = plain_quantizer(*o.quantizer, *site.quantization);
  const Tensor amax = groups > 1 && has_two_levels(plain.scaling) ? absmax_tensor(rows) : Tensor();
  QuantizedOperand all;
  std::vector<Tensor> values;
  std::vector<Tensor> slopes_of_groups;
  for (std::int64_t g = 0; g < groups; ++g) {
    const Tensor part = groups == 1 ? rows : rows.narrow(0, g * m, m);
    const QuantizeOptions options = rounding_of(o, 1, site);
    look_at(o, part, plain, options.use, site);
    all = quantize_part(part, plain, options, {.amax = amax});
    values.push_back(all.values);
    if (bends_gradient(o)) slopes_of_groups.push_back(slopes_of(part, plain, options, {.amax = amax}));
  }
  if (!slopes_of_groups.empty()) slopes = cat(slopes_of_groups, 0);
  if (groups > 1) all.values = cat(values, 0);
  return all;
}

// The scales of these rows, as they multiply the result.
Tensor row_scale(OpId op, const Tensor& scale) {
  if (!scale.defined() || scale.dim() == 0) return scale;
  return op == OpId::conv2d_backward_weight ? scale.reshape({-1, 1, 1, 1}) : scale.reshape({-1, 1, 1});
}

// Multiplies by an operand that is rounded as windows. `scale`: that of an operand before it, [] or one for each row.
Tensor by_windows(const ConvSite& c, const ProductOperand& o, const Tensor& first, const Tensor& second,
                  const Tensor& scale) {
  const Quantizer plain = plain_quantizer(*o.quantizer, *c.site.quantization);
  look_at(o, *o.tensor, plain, o.use, c.site);
  const Tensor amax = has_two_levels(plain.scaling) ? absmax_tensor(*o.tensor) : Tensor();
  const int axis = o.input == 0 ? 1 : 0;
  const bool views = first.device().is_cpu();  // GPUs have memory for whole windows
  QuantizeOptions options;
  std::int64_t group = -1;
  const auto product = [&](const Tensor& windows, const Tensor& others, const ConvPart& part) {
    if (part.group != group) options = rounding_of(o, axis, c.site);
    group = part.group;
    PartOf of{.amax = amax};
    Tensor rows = windows;
    if (views) of.row_dims = 3;
    else rows = o.input == 0 ? unfolded(windows) : unfolded(windows).t();
    of.first_element = part.first * others.size(1);
    const QuantizedOperand r = quantize_part(rows, plain, options, of);
    const Tensor y = o.input == 0 ? matmul(r.values, others.t()) : matmul(others, r.values);
    const bool by_row = scale.defined() && scale.dim() > 0;
    return scaled(scaled(y, by_row ? scale.narrow(0, part.group * y.size(0), y.size(0)).flatten(1) : scale), r.scale);
  };
  OutSpec spec[kMaxOutputs];
  columns().infer[static_cast<int>(c.call.op)](c.call, spec);
  // Tiles and the words of stochastic sums depend on the place in the product.
  const std::optional<Accumulator>& how = current_accumulator();
  const bool by_place = has_tiles(plain.scaling) || (how && how->rounding.mode == RoundingMode::stochastic);
  return conv_by_windows(c.call.op, first, second, c.attrs, spec[0].sizes, product, by_place || !views ? 0 : kConvPart);
}

// A transformed operand has its contracted dim innermost. Kernels reorder such images, and would hold both operands
// twice.
ValuesLayout layout_of(const ProductOperand& o, bool plain) {
  if (plain) return ValuesLayout::axis_last;
  return o.quantizer->hadamard ? ValuesLayout::row_major : ValuesLayout::as_given;
}

// Rounds an operand that is not left to its windows.
QuantizedOperand rounded_once(const ConvSite& c, const Quantization& q, const ProductOperand& o, bool within) {
  const Tensor& t = *o.tensor;
  const OpId op = c.call.op;
  if (within) {
    const bool plain = stays(o) || (per_tensor(o.quantizer->scaling) && !o.quantizer->hadamard);
    QuantizedOperand r = rounded(o, t, plain ? 1 : c.axis.dims[o.input], c.site,
                                 {.layout = layout_of(o, plain), .amax = amax_of_whole(o, o, {})});
    save_codes(q, o, r, c.site.state->measures);
    return r;
  }
  Tensor slopes;
  QuantizedOperand r = rounded_rows(o, conv_rows(op, t, c.attrs.groups), c.attrs.groups, c.site, slopes);
  if (slopes.defined()) set_gradient(o.input, {.slopes = from_conv_rows(op, slopes, t.sizes(), c.attrs.groups)});
  r.values = from_conv_rows(op, r.values, t.sizes(), c.attrs.groups);
  r.scale = row_scale(op, r.scale);
  return r;
}

// The groups that the innermost dim of an operand has.
std::int64_t groups_within(const ConvSite& c, const ProductOperand& o) {
  const bool grouped = c.call.op == OpId::conv2d_backward_input || (c.call.op == OpId::conv2d && o.input == 0);
  return grouped ? c.attrs.groups : 1;
}

// Error for what goes only with an operand that is rounded once, and not as windows or rows of the product.
void check_rounded_by_rows(const ConvSite& c, const Quantization& q, const ProductOperand& o) {
  if (q.requantize && !rewrite_context().gradient)
    throw_error(
        "requantize: a convolution rounds windows, not x, unless forward has one scale for a tensor or its blocks "
        "divide the channels");
  if (o.input == c.axis.windows && bends_gradient(o))
    throwf(
        "a {} gradient: a convolution rounds windows, not {}, unless it has one scale for a tensor or its blocks "
        "divide the channels; leave it out by `modules`",
        to_string(o.quantizer->gradient), o.role == Role::activation ? "x" : "W");
  if (o.channel)
    throw_error(
        "smooth: a convolution rounds windows, not x, unless it has one scale for a tensor or its blocks divide the "
        "channels; leave it out by `modules`");
}

// Error for an operand of a part of a convolution whose scale follows from more than the amax of the whole.
void check_part_of_convolution(const ProductOperand& o) {
  if (!whole_operands() || stays(o) || (!o.quantizer->hadamard && !has_two_levels(o.quantizer->scaling))) return;
  throw_error(
      "parts of a convolution agree on the amax of a tensor: not on that of a transformed one, and not on the scale of "
      "scales; let each part have its own scales");
}

Tensor convolution(const Quantization& q, const OpCall& call, ProductOperand a, ProductOperand b, Site& site) {
  const ConvSite c{call, call.get<ConvAttrs>(), conv_axis(call.op), site};
  check_part_of_convolution(a);
  check_part_of_convolution(b);
  const bool transforms = !stays(a) && !stays(b) && a.quantizer->hadamard && b.quantizer->hadamard;
  const std::vector<bool> signs = transforms ? negated(*a.quantizer) : std::vector<bool>();
  Tensor turned[2];
  QuantizedOperand done[2];
  const ProductOperand* windowed = nullptr;  // the operand that is rounded as windows
  for (ProductOperand* o : {&a, &b}) {
    const int dim = c.axis.dims[o->input];
    const std::int64_t groups = groups_within(c, *o);
    if (transforms) turned[o->input] = transformed_within(*o->tensor, dim, groups, signs);
    if (transforms) o->tensor = &turned[o->input];
    const bool within = stays(*o) || lies_within(*o->quantizer, o->tensor->size(dim) / groups);
    if (!within) check_rounded_by_rows(c, q, *o);
    if (!within && o->input == c.axis.windows) {
      windowed = o;
      continue;
    }
    QuantizedOperand& r = done[o->input];
    r = rounded_once(c, q, *o, within);
    o->tensor = &r.values;
    turned[o->input] = {};
  }
  const Tensor bias = call.inputs.size() > 2 && call[2].defined() ? call[2].to(DType::f32) : Tensor();
  const bool unscaled = !done[0].scale.defined() && !done[1].scale.defined();
  if (!windowed && unscaled && call.op == OpId::conv2d && a.tensor->dtype() == DType::f32)
    return conv2d(*a.tensor, *b.tensor, bias, c.attrs);
  Tensor y;
  if (windowed) {
    y = by_windows(c, *windowed, *a.tensor, *b.tensor, std::exchange(done[0].scale, {}));
  } else {
    const Tensor none;
    const Tensor* refs[] = {a.tensor, b.tensor, &none};
    y = dispatch(call.op, TensorRefs(refs, call.inputs.size()), c.attrs, call.where)[0];
  }
  y = scaled(scaled(y, done[0].scale), done[1].scale);
  return bias.defined() ? y.add_(bias.to(y.dtype()).reshape({-1, 1, 1})) : y;
}

// The mean of each channel over samples and positions, as an image [1, C, H, W] that has it everywhere.
Tensor mean_image(const Tensor& t) {
  const AccumulatorScope exact(std::nullopt);
  return mean(t, {0, 2, 3}, true).expand({1, t.size(1), t.size(2), t.size(3)}).contiguous();
}
Tensor sum_of_samples(const Tensor& t) {
  const AccumulatorScope exact(std::nullopt);
  return sum(t, {0}, true);
}

// The same for convolutions f, which are linear in both operands: f(a' + A, b' + B) = f(a', b') + f(A, b) + f(a', B).
// A mean is the same in each sample, so that one image, or the sum over the samples of the other operand, suffices.
// The last two are ordinary convolutions in f32. A padding of zeros makes them differ from position to position.
Tensor convolution_centered(const Quantization& q, const OpCall& call, ProductOperand a, ProductOperand b, Site& site) {
  const bool wgrad = call.op == OpId::conv2d_backward_weight;  // both operands have samples
  Tensor centered[2];
  Tensor rest;
  const auto add_product = [&](const Tensor& first, const Tensor& second) {
    const AccumulatorScope exact(std::nullopt);
    const MatmulPrecisionScope f32(MatmulPrecision::f32);
    const Tensor none;
    const Tensor* refs[] = {&first, &second, &none};
    const Tensor part = dispatch(call.op, TensorRefs(refs, call.inputs.size()), *call.attrs, call.where)[0];
    rest = rest.defined() ? gradual::add(rest, part) : part;
  };
  if (centers(a)) {
    const Tensor x = numbers_of(a);
    const Tensor image = mean_image(x);
    add_product(image, wgrad ? sum_of_samples(numbers_of(b)) : numbers_of(b));
    centered[0] = sub(x, image);
    a.tensor = &centered[0];
  }
  if (wgrad && centers(b)) {
    const Tensor x = numbers_of(b);
    const Tensor image = mean_image(x);
    add_product(sum_of_samples(numbers_of(a)), image);
    centered[1] = sub(x, image);
    b.tensor = &centered[1];
  }
  const Tensor y = convolution(q, call, a, b, site);
  return rest.defined() ? gradual::add(y, rest) : y;
}

// The product in high precision, for excluded modules and f64.
Outputs in_high_precision(const OpCall& call) {
  DType widest = DType::f32;
  for (int i = 0; i < call.inputs.size(); ++i)
    if (call[i].defined() && call[i].dtype() == DType::f64) widest = DType::f64;
  std::vector<Tensor> inputs;
  for (int i = 0; i < call.inputs.size(); ++i) inputs.push_back(call[i].defined() ? call[i].to(widest) : Tensor());
  const std::vector<const Tensor*> refs = pointers_to(inputs);
  return dispatch(call.op, TensorRefs(refs.data(), call.inputs.size()), *call.attrs, call.where);
}

// Adds what rounding changed in the gradient of a weight. `rounded`: the product of a and b as it is used.
void measure_noise(const OpCall& call, const ProductOperand& a, const ProductOperand& b, const Tensor& rounded,
                   const Site& site) {
  const bool wgrad = a.role != Role::weight && b.role != Role::weight && a.role != b.role;
  if (!rewrite_context().gradient || !wgrad || site.weight == 0 || (stays(a) && stays(b))) return;
  const Bookkeeping unseen;
  const AccumulatorScope exact_sums(std::nullopt);
  const MatmulPrecisionScope f32(MatmulPrecision::f32);
  const Tensor left = numbers_of(a);
  const Tensor right = numbers_of(b);
  const Tensor none;
  const Tensor* const refs[] = {&left, &right, &none};
  const Tensor exact = dispatch(call.op, TensorRefs(refs, call.inputs.size()), *call.attrs, call.where)[0];
  const auto squares = [](const Tensor& t) { return sum(square(t)).item(); };
  const Tensor given = cast(rounded, DType::f64);
  const Tensor wanted = cast(exact, DType::f64);
  site.state->add_noise(site.weight, {.squares = squares(given - wanted), .excess = squares(given) - squares(wanted)});
}

// The product by the quantizers of its operands.
Tensor product_of(const Quantization& q, const OpCall& call, const ProductOperand& a, const ProductOperand& b,
                  Site& site) {
  switch (call.op) {
    case OpId::matmul: return product(q, a, b, site);
    case OpId::linear: return linear_product(q, a, b, call.inputs.size() > 2 ? call[2] : Tensor(), site);
    default:
      return centers(a) || centers(b) ? convolution_centered(q, call, a, b, site) : convolution(q, call, a, b, site);
  }
}

// The dim of x that holds its channels: in forward the contracted one.
int channel_dim(OpId op, int input, bool wgrad) {
  if (op != OpId::matmul && op != OpId::linear) return 1;
  const bool contracts_last = input == 0 || op == OpId::linear;
  return contracts_last != wgrad ? -1 : -2;
}

// The mask of outlier channels of x, shaped to the dims of x or of the weight that forward multiplies with it.
Tensor mask_for(const OpCall& call, const ProductOperand& o, const Tensor& outliers, bool wgrad) {
  const Tensor mask = outliers.to(o.tensor->device());
  const int dims = o.tensor->dim();
  int dim = channel_dim(call.op, o.input, wgrad);
  if (o.role == Role::weight && call.op == OpId::conv2d_backward_input) dim = 0;
  if (o.role == Role::weight && call.op == OpId::conv2d && call.get<ConvAttrs>().groups > 1) {
    const std::int64_t groups = call.get<ConvAttrs>().groups;
    const std::int64_t in = o.tensor->size(1);
    const std::int64_t out = o.tensor->size(0) / groups;
    return mask.reshape({groups, 1, in}).expand({groups, out, in}).reshape({groups * out, in, 1, 1});
  }
  return dims == 1 ? mask : along_dim(mask, dims, dim);
}

// Whether the product contracts the channels of x, or its result has them: forward and wgrad.
bool has_channels(const ProductOperand& a, const ProductOperand& b) {
  const bool forward = a.role == Role::activation && b.role == Role::weight;
  const bool wgrad =
      (a.role == Role::activation && b.role == Role::error) || (a.role == Role::error && b.role == Role::activation);
  return forward || wgrad;
}

// The sum of the product of the outlier channels and of that of the others.
Tensor product_of_parts(const Quantization& q, const OpCall& call, const ProductOperand& a, const ProductOperand& b,
                        Site& site) {
  const bool wgrad = a.role == Role::error || b.role == Role::error;
  const std::optional<Quantizer>& wider = q.outliers->quantizer;
  Tensor numbers[2][2];  // [outliers][operand]
  ProductOperand parts[2][2] = {{a, b}, {a, b}};
  for (const int k : {0, 1}) {
    const ProductOperand& whole = k == 0 ? a : b;
    Tensor mask;
    if (whole.role != Role::error) mask = mask_for(call, whole, site.outliers(), wgrad);
    for (const int outliers : {0, 1}) {
      ProductOperand& part = parts[outliers][k];
      part.is_part = whole.quantizer != nullptr;
      if (outliers == 1) {
        part.is_counted = false;
        part.channel.reset();
        part.quantizer = whole.quantizer && wider ? &*wider : nullptr;
      }
      if (!mask.defined()) continue;
      numbers[outliers][k] = where(outliers == 1 ? mask : logical_not(mask), *whole.tensor, 0);
      part.tensor = &numbers[outliers][k];
    }
  }
  const Tensor none;
  const Tensor* const unbiased[] = {&call[0], &call[1], &none};
  const OpCall second{call.op, TensorRefs(unbiased, call.inputs.size()), call.attrs, call.where};
  const Tensor others = product_of(q, call, parts[0][0], parts[0][1], site);
  return gradual::add(others, product_of(q, second, parts[1][0], parts[1][1], site));
}

// The product of a weight's site, by parts if it has outlier channels. Measures the channels of x.
Tensor product_at(const Quantization& q, const OpCall& call, const ProductOperand& a, const ProductOperand& b,
                  Site& site) {
  if (!q.outliers || site.weight == 0 || !has_channels(a, b)) return product_of(q, call, a, b, site);
  if (whole_operands() && (a.quantizer || b.quantizer))
    throw_error("outliers: parts of an operand do not agree on channels; leave the module out by `modules`");
  const bool forward = b.role == Role::weight;
  if (forward && stages_amax(a.use) && site.state->measures_channels(q))
    site.channels.stage(*a.tensor, channel_dim(call.op, 0, false));
  if (!site.outliers().defined() || (!a.quantizer && !b.quantizer)) return product_of(q, call, a, b, site);
  return product_of_parts(q, call, a, b, site);
}

// Operand 0 or 1 of the product that a rewritten call computes.
ProductOperand operand_of(const OpCall& call, int input, const Quantization& q, QuantizeFor use) {
  const Role role = operand_role(input);
  const Role other = operand_role(1 - input);
  ProductOperand o{.tensor = &call[input],
                   .input = input,
                   .role = role,
                   .use = use,
                   .quantizer = quantizer_of(q, role, other),
                   .saved = rewrite_context().saved_scales[static_cast<std::size_t>(input)]};
  if (q.smooth && role == Role::activation && !o.saved) o.channel = channel_dim(call.op, input, other == Role::error);
  return o;
}

// Where the amaxes of a rewritten call are. Its backward has the place of its forward.
Site& site_of(QuantizationState& state, const OpCall& call) {
  RewriteContext& context = rewrite_context();
  if (!context.data) {
    const Tensor& weight = whole_operands() ? whole_operands()->weight : call[1];
    context.data = std::shared_ptr<void>(&state.site(weight), [](void*) {});  // the state owns it
  }
  return *static_cast<Site*>(context.data.get());
}

Outputs quantized(QuantizationState& state, bool unrecorded, const OpCall& call) {
  Site& site = site_of(state, call);
  if (!site.quantization || call[0].dtype() == DType::f64 || call[1].dtype() == DType::f64)
    return in_high_precision(call);
  const Quantization& q = *site.quantization;
  if (whole_operands() && q.requantize)
    throw_error(
        "requantize: codes of a part with the scale of the whole are not kept; let parts have their own scales");
  const StageScope exact(chain().results, nullptr);  // the rewritten op's own result is rounded
  // Evaluation draws nothing for backward; a checkpointed segment does, although it is not recorded at first.
  RewriteContext& context = rewrite_context();
  if (context.recorded || in_checkpoint())
    if (by_chance(q.dgrad_dy) || by_chance(q.dgrad_w) || by_chance(q.wgrad_x) || by_chance(q.wgrad_dy) ||
        (site.outliers().defined() && by_chance(q.outliers->quantizer)))
      context.backward_key = rewrite_key();
  std::optional<Accumulator> how = q.accumulator ? q.accumulator : current_accumulator();
  if (q.accumulator && how->rounding.mode == RoundingMode::stochastic) how->key = rewrite_key();
  const AccumulatorScope accumulator(how);
  const ProductOperand a = operand_of(call, 0, q, use_of(operand_role(0), state, unrecorded));
  const ProductOperand b = operand_of(call, 1, q, use_of(operand_role(1), state, unrecorded));
  Outputs out;
  out[0] = product_at(q, call, a, b, site);
  if (state.measures) measure_noise(call, a, b, out[0], site);
  DType high = promote(call[0].dtype(), call[1].dtype());
  if (is_f8(high)) high = DType::f32;
  if (!a.saved && !b.saved && high != out[0].dtype()) out[0] = out[0].to(high);
  return out;
}

// What a call of attention, which records its gradient itself, does with delayed scales. It also tells the loss scale
// of Inf and NaN that its quantizers hide, which may arise inside from finite numbers.
AttentionScales scales_of_attention(const std::shared_ptr<QuantizationState>& state, const AttentionPrecision& how,
                                    const OpCall& call, bool unrecorded) {
  bool recorded = unrecorded;
  for (int i = 0; i < call.inputs.size() && grad_enabled(); ++i)
    recorded = recorded || (call[i].defined() && needs_grad(call[i]));
  AttentionScales scales;
  const QuantizeFor use = use_in_forward(*state, recorded);
  for (std::size_t i = 0; i < std::size(kAttentionFields); ++i) {
    const AttentionField& field = kAttentionFields[i];
    const std::optional<Quantizer>& quantizer = how.*field.quantizer;
    const bool trains = field.of_backward || keeps_scale(use);
    scales.looked_at[i] = trains && quantizer && state->looks_at(*quantizer);
  }
  if (std::ranges::find(scales.looked_at, true) != scales.looked_at.end())
    scales.look = [state](const Tensor& largest, const Quantizer& quantizer) { state->look_at(largest, quantizer); };
  if (!has_delayed_scales(how)) return scales;
  scales.histories = state->attention_histories();
  scales.forward = use;
  scales.backward = [state] { return use_of_errors(*state); };
  return scales;
}

// Attention by the quantisation of its module. Modules without one have it in the dtype of its inputs. Without keys or
// queries nothing is rounded.
Outputs attention_quantized(const std::shared_ptr<QuantizationState>& state, bool unrecorded, const OpCall& call) {
  const AttentionPrecision* const how = state->attention_of_module(context().module);
  bool none = !how;
  for (int i = 0; i < 3; ++i)
    none = none || !call[i].defined() || call[i].numel() == 0 || call[i].dtype() == DType::f64;
  if (none) return next_below_amp(call);
  const AttentionScales scales = scales_of_attention(state, *how, call, unrecorded);
  return {
      {attention_in_blocks(call[0], call[1], call[2], call[3], call.get<AttentionAttrs>(), *how, scales, call.where)}};
}

}  // namespace

void quantize_contractions(PolicyTable& table, const std::shared_ptr<QuantizationState>& state, bool unrecorded) {
  not_null(state, "quantize_contractions: the state");
  RewriteParameters steps;
  if (state->learns_scales())
    steps = [state](const OpCall& call) {
      const QuantizationState::Site& site = state->site(call[1]);
      return std::vector<Tensor>{site.x_step, site.w_step};
    };
  const CastPolicy policy = CastPolicy::rewrite(
      "quantization", [state, unrecorded](const OpCall& call) { return quantized(*state, unrecorded, call); }, steps);
  for (const OpId op : kQuantisedOps) table.set(op, policy);
  if (!state->rounds_attention()) return;
  table.set(OpId::scaled_dot_product_attention,
            CastPolicy::rewrite("quantization", [state, unrecorded](const OpCall& call) {
              return attention_quantized(state, unrecorded, call);
            }));
}

void quantize_region(AutocastOptions& options, const Quantization& quantization,
                     std::shared_ptr<QuantizationState> state) {
  if (!state) state = std::make_shared<QuantizationState>(quantization);
  quantize_contractions(options.table, state, grad_enabled());
  options.at_end = [state] { state->end_forward(); };
}

}  // namespace gradual::amp
