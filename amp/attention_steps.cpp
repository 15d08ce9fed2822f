#include "attention_steps.h"

#include <string>

#include "../core/kernels/attention_blocks.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "cast_stats.h"

namespace gradual::amp {
namespace {

const AttentionField& field_of(AttentionQuantizer quantizer) {
  for (const AttentionField& f : kAttentionFields)
    if (f.quantizer == quantizer) return f;
  return kAttentionFields[0];
}

// True if the axis does not change the result.
bool has_no_axis(const Quantizer& q) { return per_tensor(q.scaling) && !is_random(q); }

}  // namespace

DType common_dtype(const std::vector<Tensor>& inputs) {
  return promote(promote(inputs[0].dtype(), inputs[1].dtype()), inputs[2].dtype());
}

AttentionSteps::AttentionSteps(const AttentionPrecision& how, const AttentionAttrs& a,
                               const std::vector<Tensor>& inputs, const AttentionDraws& from, bool is_shown)
    : precision(how),
      attrs(a),
      mask(inputs[3]),
      draws(from),
      scale(attention_scale(a, inputs[0].size(-1))),
      shown(is_shown) {
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

Tensor AttentionSteps::round(AttentionQuantizer which, const Tensor& t, int axis) {
  const std::optional<Quantizer>& quantizer = precision.*which;
  if (!quantizer) return t;
  const AttentionField& field = field_of(which);
  const std::string path = context().module;
  const Scoped site(context().module, intern(path.empty() ? field.name : path + "." + field.name));
  QuantizeOptions options{.axis = !shown && has_no_axis(*quantizer) ? -1 : axis, .stats = {}};
  if (is_random(*quantizer)) options.key = draws.next();
  const Role role = of_backward(field) ? Role::error : Role::activation;
  if (CastTally* const tally = cast_tally(role, context().module)) {
    options.stats = {&tally->counts, &tally->exponents};
    options.scaled_exponents = true;
  }
  return fake_quantize(t, *quantizer, options);
}

Tensor AttentionSteps::round_again(AttentionQuantizer which, const Tensor& before, const Tensor& t, int axis) {
  const std::optional<Quantizer>& quantizer = precision.*which;
  return !shown && quantizer && has_no_axis(*quantizer) ? before : round(which, t, axis);
}

std::optional<Accumulator> AttentionSteps::sums(const std::optional<Accumulator>& named) {
  std::optional<Accumulator> how = named ? named : current_accumulator();
  if (named && how->rounding.mode == RoundingMode::stochastic) how->key = draws.next();
  if (!how && cpu::has_attention_blocks(q.device()) && q.dtype() == DType::f32) return Accumulator();
  return how;
}

}  // namespace gradual::amp
