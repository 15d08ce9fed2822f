#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../autograd/activation_checkpoint.h"
#include "../autograd/function.h"
#include "../autograd/grad_mode.h"
#include "../core/observe/observer.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/rounding_draws.h"
#include "../core/support/throwf.h"
#include "attention_call.h"
#include "attention_kernel.h"
#include "attention_steps.h"
#include "cast_stats.h"
#include "quantization_parts.h"

namespace gradual::amp {
namespace {

constexpr double kInf = HUGE_VAL;
constexpr double kLeastShift = 0.5;
constexpr double kMostShift = 16;

constexpr std::uint64_t kBackwardDraws = std::uint64_t{1} << 32;

bool draws_signs(const AttentionPrecision& precision, const AttentionProduct& product) {
  const auto& [quantizer, axis] = product.operands[0];
  return transform_of(precision, product) && (precision.*quantizer)->signs == HadamardSigns::drawn;
}

bool draws(const AttentionPrecision& precision, bool backward) {
  for (const AttentionField& field : kAttentionFields) {
    const std::optional<Quantizer>& q = precision.*field.quantizer;
    if (q && is_random(*q) && (backward || !field.of_backward)) return true;
  }
  for (const AttentionProduct& product : kAttentionProducts)
    if (draws_signs(precision, product) && (backward || !product.of_backward)) return true;
  for (const auto* sums : {&precision.qk_accumulator, &precision.pv_accumulator})
    if (*sums && (*sums)->rounding.mode == RoundingMode::stochastic) return true;
  return false;
}

// The keys [first, first + count) of a tensor whose dim `dim` is that of keys, or 1 for all keys.
Tensor keys_of(const Tensor& t, int dim, std::int64_t first, std::int64_t count) {
  if (!t.defined() || t.dim() < -dim || t.size(dim) == 1) return t;
  return narrow(t, dim, first, count);
}

Tensor sees_nothing(const Tensor& maximum) { return eq(maximum, -kInf); }
// A number that may be subtracted from -Inf: 0 for a row that sees no key.
Tensor finite(const Tensor& maximum) { return where(sees_nothing(maximum), 0, maximum); }

// The steps of the reference.
struct Blocks : AttentionSteps {
  using AttentionSteps::AttentionSteps;

  Tensor product(const std::optional<Accumulator>& named, const Tensor& a, const Tensor& b) {
    const AccumulatorScope scope(sums(named));
    return matmul(a, b);
  }

  // The scores of a block [.., L, count], -Inf where a query may not attend.
  Tensor scores(std::int64_t first, std::int64_t count) {
    const Tensor keys = round(&AttentionPrecision::k, narrow(k, -2, first, count), -1);
    Tensor s = mul(product(precision.qk_accumulator, queries, turned(keys)), scale);
    if (mask.defined()) {
      const Tensor part = keys_of(mask, -1, first, count).contiguous();
      s = mask.dtype() == DType::bool_ ? where(part, s, -kInf) : add(s, cast(part, s.dtype()));
    }
    if (!attrs.causal) return s;
    const auto numbers = [&](std::int64_t from, std::int64_t n) {
      return arange(static_cast<double>(from), static_cast<double>(from + n), 1,
                    {.dtype = DType::i64, .device = q.device()});
    };
    const Tensor row = numbers(0, q.size(-2)).reshape({-1, 1});
    return where(ge(row, numbers(first, count)), s, -kInf);
  }

  // The maximum of each row, moved up if it occurs more than once.
  Tensor block_maximum(const Tensor& s) const {
    const Tensor most = max(s, {-1}, true);
    if (precision.beta == 0) return most;
    const Tensor times = sum(cast(eq(s, most), s.dtype()), {-1}, true);
    const Tensor wanted = where(gt(most, 0), mul(most, precision.beta - 1), neg(most));
    const Tensor moved = add(most, clamp(wanted, kLeastShift, kMostShift));
    return where(logical_and(gt(times, 1), gt(most, -kInf)), moved, most);
  }

  // The running maximum after a block whose maximum is `most`; undefined `before`: the first block. -Inf, which a row
  // has that saw no key yet, is no number that a format need have.
  Tensor running_maximum(const Tensor& before, const Tensor& most) {
    const Tensor m = before.defined() ? maximum(before, most) : most;
    if (!precision.softmax) return m;
    return where(sees_nothing(m), -kInf, round(&AttentionPrecision::softmax, finite(m), -1));
  }

  Tensor with_dropout(const Tensor& t, std::int64_t first, std::int64_t count) const {
    return kept.defined() ? mul(t, narrow(kept, -1, first, count)) : t;
  }
};

bool same_numbers(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  const Tensor both_nan = logical_and(ne(a, a), ne(b, b));
  return all(logical_or(eq(a, b), both_nan)).item<bool>();
}

bool written_by_observer() {
  return chain().observe &&
         std::ranges::any_of(ObserverScope::installed(), [](const Observer* o) { return o->writes_numbers(); });
}

// The result of the kernel where it suits, else of the reference. With observers or counts of casts the reference runs
// as well, and they see its tensors, which must have the kernel's numbers. If an observer writes numbers, the reference
// runs alone.
template <class Kernel, class Reference>
std::vector<Tensor> by_both(bool suits, const Kernel& kernel, const Reference& reference) {
  if (!suits || written_by_observer()) return reference();
  const bool looked_at = chain().observe || cast_stats();
  std::vector<Tensor> computed;
  {
    const StageScope unseen(chain().observe, nullptr);
    const Scoped uncounted(cast_stats(), nullptr);
    computed = kernel();
  }
  if (!looked_at) return computed;
  std::vector<Tensor> seen = reference();
  const StageScope unseen(chain().observe, nullptr);
  for (std::size_t i = 0; i < computed.size(); ++i)
    if (!same_numbers(computed[i], seen[i]))
      throw_error("internal: attention in blocks: the kernel and the reference differ");
  return seen;
}

class BlockAttention final : public Function {
 public:
  // `backward`: it may come, and draw.
  BlockAttention(const AttentionPrecision& precision, const AttentionAttrs& attrs, const AttentionScales& scales,
                 bool backward)
      : precision_(precision), attrs_(attrs), scales_(scales) {
    if (draws(precision_, backward)) key_ = rounding_generator().next();
  }

  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    const std::vector<Tensor> y = output(inputs);
    if (scales_.histories) used_ = ForwardScales(precision_, *scales_.histories, inputs[0].device());
    save_for_backward({inputs[0], inputs[1], inputs[2], inputs[3], y[0], y[1]});
    return {y[0].to(common_dtype(inputs))};
  }

  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    const std::vector<Tensor>& kept = saved();
    if (grad_enabled())
      throw_error(name() +
                  ": attention in blocks has no second derivative; call backward without create_graph, or use a recipe "
                  "without quantization.attention");
    if (!grads[0].defined()) return std::vector<Tensor>(4);
    std::vector<Tensor> all = gradients({kept.begin(), kept.begin() + 4}, grads[0]);
    look();
    all.resize(4);
    return all;
  }

  std::string name() const override { return "scaled_dot_product_attention in blocks"; }
  const Replaced* replaces() const override { return &replaced_; }
  const AttentionAttrs& attributes() const { return attrs_; }

  // Calls AttentionScales::look with the largest magnitudes of the pass that has just run.
  void look() {
    for (const AttentionField& field : kAttentionFields)
      if (const Tensor largest = std::exchange(largest_[number_of(field)], Tensor()); largest.defined())
        scales_.look(largest, *(precision_.*field.quantizer));
  }

 private:
  AttentionUse use_in_forward() const {
    return {scales_.histories.get(), scales_.forward, QuantizeFor::evaluation, looked_at(false)};
  }
  AttentionUse use_in_backward() const {
    return {scales_.histories.get(), QuantizeFor::later_use,
            scales_.backward ? scales_.backward() : QuantizeFor::one_use, looked_at(true)};
  }

  // The fields that are looked at in backward, or in forward.
  AttentionFlags looked_at(bool backward) const {
    AttentionFlags all = scales_.looked_at;
    for (const AttentionField& field : kAttentionFields)
      if (field.of_backward != backward) all[number_of(field)] = false;
    return all;
  }

  // [the rounded output, the rounded logsumexp], both in the compute type.
  std::vector<Tensor> output(const std::vector<Tensor>& inputs) {
    const StageScope exact(chain().results, nullptr);  // the op's own result is rounded
    const StageScope amp(chain().amp, nullptr);
    return by_both(
        kernel_suits(precision_, inputs, use_in_forward(), false), [&] { return forward_of_kernel(inputs); },
        [&] { return forward_of_reference(inputs); });
  }

  // [dq, dk, dv], and the mask's gradient if it is needed.
  std::vector<Tensor> gradients(const std::vector<Tensor>& inputs, const Tensor& grad) {
    const StageScope exact(chain().results, nullptr);
    const StageScope amp(chain().amp, nullptr);
    const Scoped running(attention_in_backward(), &replaced_);
    const auto computed = [&] {
      return by_both(
          kernel_suits(precision_, inputs, use_in_backward(), needs_input_grad(3)),
          [&] { return backward_of_kernel(inputs, grad); }, [&] { return backward_of_reference(inputs, grad); });
    };
    return scales_.histories ? used_.within(precision_, *scales_.histories, computed) : computed();
  }

  std::vector<Tensor> forward_of_reference(const std::vector<Tensor>& inputs) {
    Blocks b(precision_, attrs_, inputs, {key_, 0}, use_in_forward());
    Tensor m;
    Tensor l;
    Tensor o;
    for (std::int64_t first = 0; first < b.keys(); first += precision_.block) {
      const std::int64_t count = b.block(first);
      const Tensor s = b.scores(first, count);
      const Tensor higher = b.running_maximum(m, b.block_maximum(s));
      const Tensor p = exp(sub(s, finite(higher)));
      const Tensor in_block = sum(p, {-1}, true);
      const Tensor left = b.round(&AttentionPrecision::p, b.with_dropout(p, first, count), -1);
      const Tensor right = b.round(&AttentionPrecision::v, narrow(b.v, -2, first, count), -2);
      const Tensor pv = b.round(&AttentionPrecision::running, b.product(precision_.pv_accumulator, left, right), -1);
      if (m.defined()) {
        const Tensor shrink = exp(sub(m, finite(higher)));
        l = b.round(&AttentionPrecision::softmax, add(mul(shrink, l), in_block), -1);
        o = b.round(&AttentionPrecision::running, add(mul(shrink, o), pv), -1);
      } else {
        l = b.round(&AttentionPrecision::softmax, in_block, -1);
        o = pv;
      }
      m = higher;
    }
    const Tensor blind = sees_nothing(m);  // a row that sees no key has the output 0
    const Tensor divisor = where(blind, 1, l);
    return rounded(b, {div(o, divisor), where(blind, 0, add(finite(m), log(divisor)))});
  }

  std::vector<Tensor> forward_of_kernel(const std::vector<Tensor>& inputs) {
    AttentionSteps steps(precision_, attrs_, inputs, {key_, 0}, use_in_forward(), false);
    return rounded(steps, forward_by_kernel(steps));
  }

  std::vector<Tensor> rounded(AttentionSteps& steps, const AttentionForward& y) {
    const Tensor logsumexp = steps.round(&AttentionPrecision::softmax, y.logsumexp, -1);
    const Tensor o = steps.round(&AttentionPrecision::o, y.o, -1);
    largest_ = steps.largest();
    return {o, logsumexp};
  }

  // dO and q as backward's products read them.
  AttentionBackward operands(AttentionSteps& b, const Tensor& grad) const {
    const Tensor given = grad.to(b.q.dtype());
    AttentionBackward all;
    all.along_values = b.round(&AttentionPrecision::d_o, given, -1);
    all.along_queries = b.round_again(&AttentionPrecision::d_o, all.along_values, given, -2);
    all.along_keys = b.round_again(&AttentionPrecision::q, b.queries, b.q, -2);
    const Tensor o = b.before_rounding(&AttentionPrecision::d_o, saved()[4], -1);
    all.delta = sum(mul(all.along_values, o), {-1}, true);
    all.logsumexp = saved()[5];
    return all;
  }

  std::vector<Tensor> backward_of_reference(const std::vector<Tensor>& inputs, const Tensor& grad) {
    Blocks b(precision_, attrs_, inputs, {key_, kBackwardDraws}, use_in_backward());
    const AttentionBackward given = operands(b, grad);
    Tensor dq;
    std::vector<Tensor> dk;
    std::vector<Tensor> dv;
    std::vector<Tensor> dmask;
    for (std::int64_t first = 0; first < b.keys(); first += precision_.block) {
      const std::int64_t count = b.block(first);
      const Tensor p = exp(sub(b.scores(first, count), given.logsumexp));
      const Tensor seen = b.round(&AttentionPrecision::p, b.with_dropout(p, first, count), -2);
      dv.push_back(b.product(precision_.pv_accumulator, turned(seen), given.along_queries));
      const Tensor values = b.round(&AttentionPrecision::v, narrow(b.v, -2, first, count), -1);
      const Tensor product = b.product(precision_.qk_accumulator, given.along_values, turned(values));
      const Tensor dp = b.round(&AttentionPrecision::d_p, b.with_dropout(product, first, count), -1);
      const Tensor ds = mul(p, sub(dp, given.delta));
      const Tensor keys = b.round(&AttentionPrecision::k, narrow(b.k, -2, first, count), -2);
      const Tensor along = b.round(&AttentionPrecision::d_s, ds, -1);
      const Tensor part = mul(b.product(precision_.pv_accumulator, along, keys), b.scale);
      dq = dq.defined() ? add(dq, part) : part;
      const Tensor across = turned(b.round(&AttentionPrecision::d_s, ds, -2));
      dk.push_back(mul(b.product(precision_.pv_accumulator, across, given.along_keys), b.scale));
      if (needs_input_grad(3)) dmask.push_back(ds);
    }
    std::vector<Tensor> all{dq, cat(dk, -2), cat(dv, -2)};
    if (!dmask.empty()) all.push_back(gradient_of_mask(dmask, inputs[3]));
    largest_ = b.largest();
    return all;
  }

  std::vector<Tensor> backward_of_kernel(const std::vector<Tensor>& inputs, const Tensor& grad) {
    AttentionSteps steps(precision_, attrs_, inputs, {key_, kBackwardDraws}, use_in_backward(), false);
    std::vector<Tensor> gradients = backward_by_kernel(steps, operands(steps, grad));
    largest_ = steps.largest();
    return gradients;
  }

  // Of an added mask, whose last dim may be 1.
  static Tensor gradient_of_mask(const std::vector<Tensor>& blocks, const Tensor& mask) {
    return sum_to(cat(blocks, -1), mask.sizes());
  }

  AttentionPrecision precision_;
  AttentionAttrs attrs_;
  AttentionScales scales_;
  ForwardScales used_;
  AttentionAmaxes largest_ = {};  // of the pass that has just run
  RandomKey key_ = {};
  Replaced replaced_{OpId::scaled_dot_product_attention};
};

std::int64_t rows_of_mask(const Tensor& mask) { return mask.defined() && mask.dim() > 1 ? mask.size(-2) : 1; }

// One query for all rows of a mask.
Tensor with_rows(const Tensor& q, std::int64_t rows) {
  Shape sizes = q.sizes();
  sizes[q.dim() - 2] = rows;
  return q.expand(sizes);
}

void check_sizes_of_mask(const Tensor& mask, std::int64_t queries, std::int64_t keys) {
  if (!mask.defined() || mask.dim() == 0) return;
  const bool fits_keys = mask.size(-1) == 1 || mask.size(-1) == keys;
  const std::int64_t rows = rows_of_mask(mask);
  const bool fits_queries = queries == 1 || rows == 1 || rows == queries;
  if (!fits_keys || !fits_queries)
    throwf("attention in blocks: mask {}; allowed is [.., L, S] with {} or 1 queries L and {} or 1 keys S",
           to_string(mask.sizes()), queries, keys);
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const AttentionAttrs& attrs) {
  for (const Tensor* t : {&q, &k, &v})
    if (!t->defined() || t->dim() < 2 || !t->is_floating())
      throw_error("attention in blocks: q, k and v must be floating [.., length, head size]");
  if (q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2) || k.size(-2) == 0)
    throwf("attention in blocks: q {}, k {}, v {}; allowed are q [.., L, E], k [.., S, E] and v [.., S, D] with S > 0",
           to_string(q.sizes()), to_string(k.sizes()), to_string(v.sizes()));
  if (!(attrs.dropout >= 0 && attrs.dropout <= 1))
    throwf("attention in blocks: dropout is {}; allowed are 0 to 1", attrs.dropout);
  if (!std::isfinite(attrs.scale)) throwf("attention in blocks: the scale must be finite, given {}", attrs.scale);
  if (mask.defined() && mask.dtype() != DType::bool_ && !mask.is_floating())
    throwf("attention in blocks: the mask must be bool or floating, given {}", to_string(mask.dtype()));
  check_sizes_of_mask(mask, q.size(-2), k.size(-2));
}

// What a quantizer of attention cannot have.
struct RefusedOption {
  const char* name;
  bool (*is_in)(const AttentionField& field, const Quantizer& q);
};
bool between_blocks(const AttentionField& field) {
  return field.quantizer == &AttentionPrecision::softmax || field.quantizer == &AttentionPrecision::running;
}
constexpr RefusedOption kRefusedOptions[] = {
    {"center", [](const AttentionField&, const Quantizer& q) { return q.center; }},
    {"delayed scaling", [](const AttentionField& field,
                           const Quantizer& q) { return between_blocks(field) && is_any<DelayedScale>(q.scaling); }},
    {"learned scaling", [](const AttentionField&, const Quantizer& q) { return is_any<LearnedScale>(q.scaling); }}};

const char* name_of(AttentionQuantizer quantizer) { return field_of(quantizer).name; }

// A transform is of both operands of a product, in one size and with the same signs. Q and K have it in Q K^T, V and dO
// in dO V^T. P and dS bring it into their two products, whose other operands then need it.
void check_both_operands(const AttentionPrecision& a, const AttentionProduct& product) {
  const auto of = [&](const AttentionOperand& o) {
    return a.*o.quantizer ? (a.*o.quantizer)->hadamard : HadamardSize();
  };
  const auto& [left, right] = product.operands;
  const bool along_head = product.contracts == Contracts::head;
  if (!of(left) && (!along_head || !of(right))) return;
  if (of(left) != of(right))
    throwf("{}, {}: the Hadamard transform of {} is of both operands, in one size; given are {} and {}",
           name_of(left.quantizer), name_of(right.quantizer), product.text, of(left).size, of(right).size);
  if ((a.*left.quantizer)->signs != (a.*right.quantizer)->signs)
    throwf("{}, {}: the signs of the Hadamard transform of {} are those of both operands", name_of(left.quantizer),
           name_of(right.quantizer), product.text);
  if (product.contracts == Contracts::keys && a.block % of(left).size != 0)
    throwf(
        "{}: block is {}, no multiple of the Hadamard transform of {}: a group of {} would lie in two blocks, of which "
        "only one is at hand",
        name_of(left.quantizer), a.block, of(left).size, product.text);
}

// A history takes in the amaxes of forward's fields in forward alone, along one axis.
void check_staged_axes(const AttentionPrecision& a, const AttentionField& field) {
  if (field.of_backward || !delayed(a.*field.quantizer) || !(a.*field.quantizer)->hadamard) return;
  throwf(
      "{}: delayed scaling keeps one history, from the amaxes of forward, and a Hadamard transform has other numbers "
      "in backward, whose products contract another axis; q, k, v and p have one of the two, do and ds may have both",
      field.name);
}

bool multiplies(const AttentionField& field) {
  return std::ranges::any_of(kAttentionProducts, [&](const AttentionProduct& product) {
    return product.operands[0].quantizer == field.quantizer || product.operands[1].quantizer == field.quantizer;
  });
}

void check_transforms(const AttentionPrecision& a) {
  for (const AttentionField& field : kAttentionFields)
    if (const std::optional<Quantizer>& q = a.*field.quantizer; q && q->hadamard && !multiplies(field))
      throwf("{}: a Hadamard transform is of the operands of a product: q, k, v, p, do and ds", field.name);
  for (const AttentionProduct& product : kAttentionProducts) check_both_operands(a, product);
  for (const AttentionField& field : kAttentionFields) check_staged_axes(a, field);
}

void check_quantizer(const AttentionField& field, const Quantizer& q) {
  in_context(field.name, [&] { check_valid(q); });
  const auto* const refused =
      std::ranges::find_if(kRefusedOptions, [&](const RefusedOption& option) { return option.is_in(field, q); });
  if (refused != std::end(kRefusedOptions))
    throwf(
        "{}: {}; in attention every scaling but learned is allowed, delayed not of softmax and running, and no center",
        field.name, refused->name);
  if (q.gradient != QuantizerGradient::straight)
    throwf("{}: the gradient is {}; in attention it is straight", field.name, to_string(q.gradient));
}

// What the transforms need of a call.
void check_transformed(const AttentionPrecision& a, const Tensor& q, const Tensor& v, const Tensor& mask, bool causal) {
  for (const AttentionProduct& product : kAttentionProducts) {
    const HadamardSize of = transform_of(a, product);
    if (!of) continue;
    const bool queries_and_keys = product.operands[0].quantizer == &AttentionPrecision::q;
    const std::int64_t size = queries_and_keys ? q.size(-1) : v.size(-1);
    if (product.contracts == Contracts::head && size % of.size != 0)
      throwf(
          "attention in blocks: the Hadamard transform of {} in {} has groups of {}, which do not divide the head size "
          "{}; allowed are divisors of it from 16 to 256",
          product.text, name_of(product.operands[0].quantizer), of.size, size);
    if (!product.of_backward && product.contracts == Contracts::keys && (mask.defined() || causal))
      throwf(
          "attention in blocks: the Hadamard transform of {} mixes the values of {} keys, and a mask hides some of "
          "these from a query: their rounding errors would reach its output; leave out hadamard of p",
          product.text, of.size);
  }
}

}  // namespace

void check_valid(const AttentionPrecision& a) {
  for (const AttentionField& field : kAttentionFields)
    if (const std::optional<Quantizer>& q = a.*field.quantizer) check_quantizer(field, *q);
  for (const auto* sums : {&a.qk_accumulator, &a.pv_accumulator})
    if (*sums) check_valid(**sums);
  if (a.block < 1) throwf("block is {}; a block has at least 1 key", a.block);
  check_transforms(a);
  if (a.beta != 0 && !(a.beta > 1 && std::isfinite(a.beta)))
    throwf("beta is {}; allowed are 0 and finite numbers above 1", a.beta);
}

void leave_unrounded(AttentionPrecision& precision, AttentionQuantizer field) {
  (precision.*field).reset();
  const auto lose_transform = [&](const AttentionOperand& operand) {
    if (std::optional<Quantizer>& q = precision.*operand.quantizer) q->hadamard = false;
  };
  const auto leave_partners = [&](bool along_head) {
    for (const AttentionProduct& product : kAttentionProducts) {
      if ((product.contracts == Contracts::head) != along_head || transform_of(precision, product)) continue;
      lose_transform(product.operands[0]);
      if (along_head) lose_transform(product.operands[1]);
    }
  };
  leave_partners(true);
  leave_partners(false);
}

Tensor attention_in_blocks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                           const AttentionAttrs& attrs, const AttentionPrecision& precision,
                           const AttentionScales& scales, Loc loc) {
  in_context("attention in blocks", [&] { check_valid(precision); });
  if (has_delayed_scales(precision) && !scales.histories)
    throw_error(
        "attention in blocks: delayed scaling keeps amax histories: give AttentionScales::histories, or run it under a "
        "recipe");
  check_inputs(q, k, v, mask, attrs);
  check_transformed(precision, q, v, mask, attrs.causal);
  if (const std::int64_t rows = rows_of_mask(mask); rows != 1 && rows != q.size(-2))
    return attention_in_blocks(with_rows(q, rows), k, v, mask, attrs, precision, scales, loc);
  const auto recorded = [](const Tensor& t) { return t.defined() && needs_grad(t); };
  const bool backward =
      in_checkpoint() || (grad_enabled() && (recorded(q) || recorded(k) || recorded(v) || recorded(mask)));
  const auto function = std::make_shared<BlockAttention>(precision, attrs, scales, backward);
  const Tensor y = apply(function, {q, k, v, mask}, loc)[0];
  function->look();
  return y;
}

const AttentionAttrs* attributes_of_blocks(const OpCall& call) {
  if (call.op != OpId::custom) return nullptr;
  const auto* const blocks = dynamic_cast<const BlockAttention*>(call.get<CustomAttrs>().function);
  return blocks ? &blocks->attributes() : nullptr;
}

}  // namespace gradual::amp
