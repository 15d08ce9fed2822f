#include "attention_steps.h"

#include <algorithm>
#include <string>
#include <utility>

#include "../core/kernels/attention_blocks.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/quantize/block_scales.h"
#include "../core/support/multiversion.h"
#include "bookkeeping.h"
#include "cast_stats.h"
#include "product_transform.h"
#include "quantization_parts.h"

namespace gradual::amp {
namespace {

// The signs of each product's transform. Drawn ones follow from the call's key and the product alone, so that backward
// recomputes forward's scores.
using Signs = std::array<std::vector<bool>, std::size(kAttentionProducts)>;
Signs signs_of_products(const AttentionPrecision& precision, const RandomKey& key) {
  constexpr std::uint64_t kSignsKey = 0xd1b54a32d192ed03;
  Signs all;
  std::uint64_t number = 0;
  for (const AttentionProduct& product : kAttentionProducts) {
    const HadamardSize size = transform_of(precision, product);
    std::vector<bool>& signs = all[number++];
    if (!size) continue;
    const bool drawn = (precision.*product.operands[0].quantizer)->signs == HadamardSigns::drawn;
    signs = drawn ? drawn_signs(size, {key.seed ^ (number * kSignsKey), key.stream}) : fixed_signs(size);
  }
  return all;
}

}  // namespace

const AttentionField& field_of(AttentionQuantizer quantizer) {
  return *std::ranges::find(kAttentionFields, quantizer, &AttentionField::quantizer);
}

std::size_t number_of(const AttentionField& field) { return static_cast<std::size_t>(&field - kAttentionFields); }

AmaxHistory& AttentionHistories::of(AttentionQuantizer field) { return fields[number_of(field_of(field))]; }

void AttentionHistories::take_staged(const AttentionPrecision& precision, const AttentionField& field) {
  const std::optional<Quantizer>& quantizer = precision.*field.quantizer;
  AmaxHistory& history = of(field.quantizer);
  const DelayedScale* const scaling = delayed(quantizer);
  if (scaling && history.is_staged) history.advance(*scaling, quantizer->format);
}

void AttentionHistories::take_staged(const AttentionPrecision& precision, bool backward) {
  for (const AttentionField& field : kAttentionFields)
    if (field.of_backward == backward) take_staged(precision, field);
}

bool has_delayed_scales(const AttentionPrecision& precision) {
  return std::ranges::any_of(kAttentionFields,
                             [&](const AttentionField& field) { return delayed(precision.*field.quantizer); });
}

namespace {

// A copy of a number in a GPU's memory.
Tensor copy_of(const float* number, Device device) {
  Tensor copy = empty({1}, {.device = device});
  device::copy(copy.raw(), device, number, device, sizeof *number);
  return copy;
}

// f(number of the field, its history, its scaling) for forward's fields with a delayed scale.
template <class F>
void for_delayed_of_forward(const AttentionPrecision& precision, AttentionHistories& histories, const F& f) {
  for (const AttentionField& field : kAttentionFields)
    if (const DelayedScale* const scaling = delayed(precision.*field.quantizer); scaling && !field.of_backward)
      f(number_of(field), histories.of(field.quantizer), *scaling);
}

}  // namespace

ForwardScales::ForwardScales(const AttentionPrecision& precision, AttentionHistories& histories, Device device)
    : device_(device) {
  for_delayed_of_forward(precision, histories, [&](std::size_t i, AmaxHistory& history, const DelayedScale& scaling) {
    if (device_.is_cuda()) {
      on_gpu_[i] = copy_of(&history.on_device(device_, scaling.history)->used, device_);
      return;
    }
    history.on_host();
    of_fields_[i] = history.used;
  });
}

void ForwardScales::exchange(const AttentionPrecision& precision, AttentionHistories& histories) {
  for_delayed_of_forward(precision, histories, [&](std::size_t i, AmaxHistory& history, const DelayedScale& scaling) {
    if (device_.is_cuda()) {
      float* const used = &history.on_device(device_, scaling.history)->used;
      const Tensor own = std::exchange(on_gpu_[i], copy_of(used, device_));
      device::copy(used, device_, own.raw(), device_, sizeof *used);
      return;
    }
    history.on_host();
    std::swap(of_fields_[i], history.used);
  });
}

HadamardSize transform_of(const AttentionPrecision& precision, const AttentionProduct& product) {
  const std::optional<Quantizer>& left = precision.*product.operands[0].quantizer;
  const std::optional<Quantizer>& right = precision.*product.operands[1].quantizer;
  return left && right && right->hadamard ? left->hadamard : HadamardSize();
}

DType common_dtype(const std::vector<Tensor>& inputs) {
  return promote(promote(inputs[0].dtype(), inputs[1].dtype()), inputs[2].dtype());
}

AttentionSteps::AttentionSteps(const AttentionPrecision& how, const AttentionAttrs& a,
                               const std::vector<Tensor>& inputs, const AttentionDraws& from,
                               const AttentionUse& of_scales, bool is_shown)
    : precision(how),
      attrs(a),
      mask(inputs[3]),
      draws(from),
      use(of_scales),
      scale(attention_scale(a, inputs[0].size(-1))),
      shown(is_shown),
      signs(signs_of_products(how, from.key)) {
  const DType dtype = promote(DType::f32, common_dtype(inputs));
  q = inputs[0].to(dtype);
  k = inputs[1].to(dtype);
  v = inputs[2].to(dtype);
  queries = round(&AttentionPrecision::q, q, -1);
  if (!(attrs.dropout > 0)) return;
  Shape sizes = broadcast_shapes(q.sizes().first(q.dim() - 2), k.sizes().first(k.dim() - 2), "attention");
  if (mask.defined() && mask.dim() > 2)
    sizes = broadcast_shapes(sizes, mask.sizes().first(mask.dim() - 2), "attention");
  sizes.push_back(q.size(-2));
  sizes.push_back(k.size(-2));
  const Tensor all = ones(sizes, options_of(q));
  kept = dispatch1(OpId::dropout, {&all}, DropoutAttrs{attrs.dropout, attrs.key}, Loc::current());
}

const std::vector<bool>* AttentionSteps::signs_of(AttentionQuantizer which, int axis) const {
  for (std::size_t i = 0; i < signs.size(); ++i)
    for (const AttentionOperand& operand : kAttentionProducts[i].operands)
      if (operand == AttentionOperand{which, axis} && !signs[i].empty()) return &signs[i];
  return nullptr;
}

bool AttentionSteps::has_no_axis(AttentionQuantizer which) const {
  const Quantizer& quantizer = *(precision.*which);
  return per_tensor(quantizer.scaling) && !is_random(quantizer) && !signs_of(which, -1) && !signs_of(which, -2);
}

Tensor AttentionSteps::before_rounding(AttentionQuantizer which, const Tensor& t, int axis) const {
  const std::vector<bool>* const negated = signs_of(which, axis);
  return negated ? transformed(t, axis, *negated) : t;
}

Tensor AttentionSteps::round(AttentionQuantizer which, const Tensor& t, int axis) {
  if (!(precision.*which)) return t;
  const Quantizer quantizer = untransformed(*(precision.*which));
  const AttentionField& field = field_of(which);
  const std::string path = context().module;
  const Scoped site(context().module, intern(path.empty() ? field.name : path + "." + field.name));
  QuantizeOptions options{.axis = !shown && has_no_axis(which) ? -1 : axis, .stats = {}};
  if (is_random(quantizer)) options.key = draws.next();
  if (use.histories) options.history = &use.histories->of(which);
  options.use = use_of(field);
  const Role role = field.of_backward ? Role::error : Role::activation;
  if (CastTally* const tally = cast_tally(role, context().module)) {
    options.stats = {&tally->counts, &tally->exponents};
    options.scaled_exponents = true;
  }
  const Tensor given = before_rounding(which, t, axis);
  add_largest(field, given);
  return fake_quantize(given, quantizer, options);
}

void AttentionSteps::add_largest(const AttentionField& field, const Tensor& t) {
  const std::size_t number = number_of(field);
  if (!use.looked_at[number]) return;
  const Bookkeeping unseen;
  const Tensor here = reshape(absmax_tensor(t), {1});
  Tensor& all = largest_[number];
  all = all.defined() ? maximum(all, here) : here;
}

Tensor AttentionSteps::round_again(AttentionQuantizer which, const Tensor& before, const Tensor& t, int axis) {
  return !shown && precision.*which && has_no_axis(which) ? before : round(which, t, axis);
}

void AmaxOfCall::add(const float* values, std::int64_t n) {
  const float largest = vectorized([=] { return detail::largest(values, n, 0.0F); });
  const std::lock_guard lock(mutex_);
  amax_ = detail::larger_magnitude(largest, amax_);
}

AmaxOfCall* AttentionSteps::amax_of(AttentionQuantizer which) {
  const AttentionField& field = field_of(which);
  if (!stages(field) && !use.looked_at[number_of(field)]) return nullptr;
  std::unique_ptr<AmaxOfCall>& amax = amaxes_[number_of(field)];
  if (!amax) amax = std::make_unique<AmaxOfCall>();
  return amax.get();
}

bool AttentionSteps::stages(const AttentionField& field) const {
  return delayed(precision.*field.quantizer) && stages_amax(use_of(field));
}

void AttentionSteps::stage_amaxes() {
  for (const AttentionField& field : kAttentionFields)
    if (const auto& amax = amaxes_[number_of(field)]; amax && stages(field))
      use.histories->of(field.quantizer).stage(amax->value());
}

AttentionAmaxes AttentionSteps::largest() const {
  AttentionAmaxes all = largest_;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!use.looked_at[i] || !amaxes_[i]) continue;
    const float of_kernel = amaxes_[i]->value();
    const float of_tensors = all[i].defined() ? static_cast<float>(all[i].item()) : 0;
    all[i] = full({1}, static_cast<double>(detail::larger_magnitude(of_tensors, of_kernel)));
  }
  return all;
}

std::optional<Accumulator> AttentionSteps::sums(const std::optional<Accumulator>& named) {
  std::optional<Accumulator> how = named ? named : current_accumulator();
  if (named && how->rounding.mode == RoundingMode::stochastic) how->key = draws.next();
  if (!how && cpu::has_attention_blocks(q.device()) && q.dtype() == DType::f32) return Accumulator();
  return how;
}

}  // namespace gradual::amp
