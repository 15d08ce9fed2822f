#include "attention_kernel.h"

#include <algorithm>
#include <utility>

#include "../core/kernels/attention_blocks.h"
#include "../core/kernels/contraction_operand.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../core/quantize/row_quantizer.h"
#include "quantization_parts.h"

namespace gradual::amp {
namespace {

// The quantizers of numbers that only the kernel has.
constexpr AttentionQuantizer kWithin[] = {&AttentionPrecision::p, &AttentionPrecision::d_p, &AttentionPrecision::d_s,
                                          &AttentionPrecision::softmax, &AttentionPrecision::running};

// Of FixedScale.
constexpr float kLeastGivenScale = 0x1p-126F;
constexpr float kMostGivenScale = 0x1p126F;

Shape leading(const Tensor& t) { return t.sizes().first(std::max(0, t.dim() - 2)); }

// The heads of the scores.
Shape heads_of(const Tensor& q, const Tensor& k) { return broadcast_shapes(leading(q), leading(k), "attention"); }

Tensor sized(Shape batch, std::int64_t rows, std::int64_t columns) {
  batch.push_back(rows);
  batch.push_back(columns);
  return empty(batch);
}

// The scale that a history has for this use, and what the use does to the history, as fake_quantize() has it.
float take_scale(AmaxHistory& history, QuantizeFor use) {
  history.on_host();
  if (keeps_scale(use)) history.used = history.scale;
  return use == QuantizeFor::later_use ? history.used : history.scale;
}

// A delayed scale as a given number.
Quantizer with_scale(Quantizer quantizer, float scale) {
  const ScaledProduct product = product_of(quantizer.scaling);
  quantizer.scaling = FixedScale{.value = scale, .product = product};
  return quantizer;
}

// The quantizer of a field with a delayed scale, for this use.
Quantizer scaled(AttentionSteps& steps, AttentionQuantizer which) {
  AmaxHistory& history = steps.use.histories->of(which);
  return with_scale(*(steps.precision.*which), take_scale(history, steps.use_of(field_of(which))));
}

// Rounds rows of numbers. Before that, `amax` (null: none) is updated with their largest magnitude.
cpu::RowRounding rounding(const RowQuantizer& rows, AmaxOfCall* amax, bool each_alone) {
  return {.round =
              [rows, amax](float* values, std::int64_t n, std::int64_t first) {
                if (amax) amax->add(values, n);
                rows.round(values, n, first);
              },
          .each_alone = each_alone};
}

cpu::RowRounding rows_of(AttentionSteps& steps, AttentionQuantizer which, std::int64_t length) {
  const std::optional<Quantizer>& quantizer = steps.precision.*which;
  if (!quantizer) return {};
  const bool random = is_random(*quantizer);
  const RandomKey key = random ? steps.draws.next() : RandomKey();
  AmaxOfCall* const amax = steps.amax_of(which);
  const bool each_alone = !random && per_tensor(quantizer->scaling);
  const Quantizer used = delayed(quantizer) ? scaled(steps, which) : *quantizer;
  return rounding(RowQuantizer(used, length, key), amax, each_alone);
}

Accumulator sums_of(AttentionSteps& steps, const std::optional<Accumulator>& named) {
  return steps.sums(named).value_or(Accumulator());
}

cpu::BlockAttention call_of(const AttentionSteps& s) {
  Tensor mask = s.mask;
  if (mask.defined() && mask.dtype() != DType::bool_) mask = mask.to(DType::f32);
  return {.batch = heads_of(s.q, s.k),
          .q = s.queries,
          .mask = mask,
          .kept = s.kept,
          .scale = s.scale,
          .beta = s.precision.beta,
          .causal = s.attrs.causal,
          .keys = s.keys(),
          .values = s.v.size(-1)};
}

cpu::ForwardBlock forward_block(AttentionSteps& s, std::int64_t first) {
  using A = AttentionPrecision;
  const std::int64_t count = s.block(first);
  const std::int64_t width = s.v.size(-1);
  cpu::ForwardBlock b{.first = first, .count = count};
  // random numbers are drawn in the order of the reference
  b.k = s.round(&A::k, narrow(s.k, -2, first, count), -1);
  b.scores = sums_of(s, s.precision.qk_accumulator);
  b.maximum = rows_of(s, &A::softmax, 1);
  b.p = rows_of(s, &A::p, count);
  b.v = s.round(&A::v, narrow(s.v, -2, first, count), -2);
  b.output = sums_of(s, s.precision.pv_accumulator);
  b.product = rows_of(s, &A::running, width);
  b.sum = rows_of(s, &A::softmax, 1);
  if (first > 0) b.running = rows_of(s, &A::running, width);
  return b;
}

cpu::BackwardBlock backward_block(AttentionSteps& s, std::int64_t first) {
  using A = AttentionPrecision;
  const std::int64_t count = s.block(first);
  const std::int64_t queries = s.q.size(-2);
  const Tensor keys = narrow(s.k, -2, first, count);
  cpu::BackwardBlock b{.first = first, .count = count};
  // random numbers are drawn in the order of the reference
  b.k = s.round(&A::k, keys, -1);
  b.scores = sums_of(s, s.precision.qk_accumulator);
  b.p_columns = rows_of(s, &A::p, queries);
  b.dv = sums_of(s, s.precision.pv_accumulator);
  b.v = s.round(&A::v, narrow(s.v, -2, first, count), -1);
  b.dp = sums_of(s, s.precision.qk_accumulator);
  b.dp_rows = rows_of(s, &A::d_p, count);
  b.k_of_dq = s.round_again(&A::k, b.k, keys, -2);
  b.ds_rows = rows_of(s, &A::d_s, count);
  b.dq = sums_of(s, s.precision.pv_accumulator);
  b.ds_columns = rows_of(s, &A::d_s, queries);
  b.dk = sums_of(s, s.precision.pv_accumulator);
  b.ds_once = b.ds_rows.each_alone;
  return b;
}

template <class Block> std::vector<Block> blocks_of(AttentionSteps& s, Block (*block)(AttentionSteps&, std::int64_t)) {
  std::vector<Block> all;
  for (std::int64_t first = 0; first < s.keys(); first += s.precision.block) all.push_back(block(s, first));
  return all;
}

// Whether the kernel rounds with this quantizer inside of its blocks.
bool suits_within(const AttentionPrecision& how, AttentionQuantizer which, const AttentionUse& use) {
  const Quantizer& quantizer = *(how.*which);
  if (!delayed(how.*which)) return RowQuantizer::suits(quantizer);
  AmaxHistory& history = use.histories->of(which);
  history.on_host();
  const auto is_given = [](float scale) { return scale >= kLeastGivenScale && scale <= kMostGivenScale; };
  return !quantizer.hadamard && is_given(history.scale) && is_given(history.used);
}

}  // namespace

bool kernel_suits(const AttentionPrecision& how, const std::vector<Tensor>& inputs, const AttentionUse& use,
                  bool mask_needs_grad) {
  const Tensor& k = inputs[1];
  const Tensor& v = inputs[2];
  const Tensor& mask = inputs[3];
  for (const Tensor& t : inputs)
    if (t.defined() && (!cpu::has_attention_blocks(t.device()) || t.numel() == 0)) return false;
  if (promote(DType::f32, common_dtype(inputs)) != DType::f32 || cpu::rounds_to_tf32(DType::f32)) return false;
  if (current_accumulator() || mask_needs_grad) return false;
  if (std::min<std::int64_t>(how.block, k.size(-2)) > cpu::most_keys_of_block()) return false;
  for (const AttentionQuantizer which : kWithin)
    if (how.*which && !suits_within(how, which, use)) return false;
  if (mask.defined() && mask.dim() > 1 && mask.size(-2) != 1 && mask.size(-2) != inputs[0].size(-2)) return false;
  const Shape heads = heads_of(inputs[0], k);
  Shape all = broadcast_shapes(heads, leading(v), "attention");
  if (mask.defined()) all = broadcast_shapes(all, leading(mask), "attention");
  return all == heads;
}

AttentionForward forward_by_kernel(AttentionSteps& s) {
  const cpu::BlockAttention call = call_of(s);
  const std::vector<cpu::ForwardBlock> blocks = blocks_of(s, forward_block);
  AttentionForward out{sized(call.batch, s.q.size(-2), call.values), sized(call.batch, s.q.size(-2), 1)};
  cpu::attend_in_blocks(call, blocks, out.o, out.logsumexp);
  s.stage_amaxes();
  return out;
}

std::vector<Tensor> backward_by_kernel(AttentionSteps& s, const AttentionBackward& given) {
  const cpu::BlockAttention call = call_of(s);
  const std::vector<cpu::BackwardBlock> blocks = blocks_of(s, backward_block);
  const cpu::BackwardOperands operands{given.along_values, given.along_queries, given.along_keys,
                                       given.delta.contiguous(), given.logsumexp.contiguous()};
  const Tensor dq = sized(call.batch, s.q.size(-2), s.q.size(-1));
  const Tensor dk = sized(call.batch, call.keys, s.q.size(-1));
  const Tensor dv = sized(call.batch, call.keys, call.values);
  cpu::attend_in_blocks_backward(call, blocks, operands, dq, dk, dv);
  s.stage_amaxes();
  return {dq, dk, dv};
}

}  // namespace gradual::amp
