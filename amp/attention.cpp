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
#include "../core/ops/derived_ops.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "cast_stats.h"

namespace gradual::amp {
namespace {

constexpr double kInf = HUGE_VAL;
constexpr double kLeastShift = 0.5;
constexpr double kMostShift = 16;

bool of_backward(const AttentionField& field) { return field.name[0] == 'd'; }

bool draws(const AttentionPrecision& precision, bool backward) {
  for (const AttentionField& field : kAttentionFields) {
    const std::optional<Quantizer>& q = precision.*field.quantizer;
    if (q && is_random(*q) && (backward || !of_backward(field))) return true;
  }
  for (const auto* sums : {&precision.qk_accumulator, &precision.pv_accumulator})
    if (*sums && (*sums)->rounding.mode == RoundingMode::stochastic) return true;
  return false;
}

// Each draw has a seed of its own, which follows from the call's key: a backward that runs again draws the same.
struct Draws {
  RandomKey key;
  std::uint64_t drawn;

  RandomKey next() {
    ++drawn;
    return {key.seed ^ (drawn * 0x9e3779b97f4a7c15), key.stream};
  }
};
constexpr std::uint64_t kBackwardDraws = std::uint64_t{1} << 32;

// Rounds `t` at the site PATH.name. Gradients are counted as errors, all else as activations.
Tensor rounded_at_site(const AttentionField& field, const AttentionPrecision& precision, const Tensor& t, int axis,
                       Draws& draws) {
  const std::optional<Quantizer>& quantizer = precision.*field.quantizer;
  if (!quantizer) return t;
  const std::string path = context().module;
  const Scoped site(context().module, intern(path.empty() ? field.name : path + "." + field.name));
  QuantizeOptions options{.axis = axis, .stats = {}};
  if (is_random(*quantizer)) options.key = draws.next();
  const Role role = of_backward(field) ? Role::error : Role::activation;
  if (CastTally* const tally = cast_tally(role, context().module)) {
    options.stats = {&tally->counts, &tally->exponents};
    options.scaled_exponents = true;
  }
  return fake_quantize(t, *quantizer, options);
}

constexpr const AttentionField& field_of(std::optional<Quantizer> AttentionPrecision::*quantizer) {
  for (const AttentionField& f : kAttentionFields)
    if (f.quantizer == quantizer) return f;
  return kAttentionFields[0];
}

Tensor turned(const Tensor& t) { return transpose(t, -2, -1); }

// The keys [first, first + count) of a tensor whose dim `dim` is that of keys, or 1 for all keys.
Tensor keys_of(const Tensor& t, int dim, std::int64_t first, std::int64_t count) {
  if (!t.defined() || t.dim() < -dim || t.size(dim) == 1) return t;
  return narrow(t, dim, first, count);
}

Tensor sees_nothing(const Tensor& maximum) { return eq(maximum, -kInf); }
// A number that may be subtracted from -Inf: 0 for a row that sees no key.
Tensor finite(const Tensor& maximum) { return where(sees_nothing(maximum), 0, maximum); }

// Of q, k and v, which the inputs begin with.
DType common_dtype(const std::vector<Tensor>& inputs) {
  return promote(promote(inputs[0].dtype(), inputs[1].dtype()), inputs[2].dtype());
}

// One call: its operands in the compute type, and the steps that forward and backward share.
struct Blocks {
  const AttentionPrecision& precision;
  const AttentionAttrs& attrs;
  Tensor q, k, v, mask;
  Tensor queries;  // q, rounded for the scores
  Tensor kept;     // dropout of ones [.., L, S]; undefined: no dropout
  Draws draws;
  double scale = 0;

  Blocks(const AttentionPrecision& how, const AttentionAttrs& a, const std::vector<Tensor>& inputs, const Draws& from)
      : precision(how), attrs(a), mask(inputs[3]), draws(from), scale(attention_scale(a, inputs[0].size(-1))) {
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

  std::int64_t keys() const { return k.size(-2); }
  std::int64_t block(std::int64_t first) const { return std::min<std::int64_t>(precision.block, keys() - first); }

  Tensor round(std::optional<Quantizer> AttentionPrecision::*quantizer, const Tensor& t, int axis) {
    return rounded_at_site(field_of(quantizer), precision, t, axis, draws);
  }
  Tensor product(const std::optional<Accumulator>& sums, const Tensor& a, const Tensor& b) {
    std::optional<Accumulator> how = sums ? sums : current_accumulator();
    if (sums && how->rounding.mode == RoundingMode::stochastic) how->key = draws.next();
    const AccumulatorScope scope(how);
    return matmul(a, b);
  }

  // The scores of a block [.., L, count], -Inf where a query may not attend.
  Tensor scores(std::int64_t first, std::int64_t count) {
    const Tensor keys = round(&AttentionPrecision::k, narrow(k, -2, first, count), -1);
    Tensor s = mul(product(precision.qk_accumulator, queries, turned(keys)), scale);
    if (mask.defined()) {
      const Tensor part = keys_of(mask, -1, first, count);
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

class BlockAttention final : public Function {
 public:
  // `backward`: it may come, and draw.
  BlockAttention(const AttentionPrecision& precision, const AttentionAttrs& attrs, bool backward)
      : precision_(precision), attrs_(attrs) {
    if (draws(precision_, backward)) key_ = default_generator().next();
  }

  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    const StageScope exact(chain().results, nullptr);  // the op's own result is rounded
    const StageScope amp(chain().amp, nullptr);
    Blocks b(precision_, attrs_, inputs, {key_, 0});
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
    const Tensor lse = b.round(&AttentionPrecision::softmax, where(blind, 0, add(finite(m), log(divisor))), -1);
    const Tensor output = b.round(&AttentionPrecision::o, div(o, divisor), -1);
    save_for_backward({inputs[0], inputs[1], inputs[2], inputs[3], output, lse});
    return {output.to(common_dtype(inputs))};
  }

  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    const std::vector<Tensor>& kept = saved();
    if (grad_enabled()) throw_error(name() + ": attention in blocks has no second derivative");
    if (!grads[0].defined()) return std::vector<Tensor>(4);
    const StageScope exact(chain().results, nullptr);
    const StageScope amp(chain().amp, nullptr);
    Blocks b(precision_, attrs_, kept, {key_, kBackwardDraws});
    const Tensor given = grads[0].to(b.q.dtype());
    const Tensor along_values = b.round(&AttentionPrecision::d_o, given, -1);
    const Tensor along_queries = b.round(&AttentionPrecision::d_o, given, -2);
    const Tensor along_keys = b.round(&AttentionPrecision::q, b.q, -2);
    const Tensor delta = sum(mul(along_values, kept[4]), {-1}, true);
    Tensor dq;
    std::vector<Tensor> dk;
    std::vector<Tensor> dv;
    std::vector<Tensor> dmask;
    for (std::int64_t first = 0; first < b.keys(); first += precision_.block) {
      const std::int64_t count = b.block(first);
      const Tensor p = exp(sub(b.scores(first, count), kept[5]));
      const Tensor seen = b.round(&AttentionPrecision::p, b.with_dropout(p, first, count), -2);
      dv.push_back(b.product(precision_.pv_accumulator, turned(seen), along_queries));
      const Tensor values = b.round(&AttentionPrecision::v, narrow(b.v, -2, first, count), -1);
      const Tensor dp =
          b.round(&AttentionPrecision::d_p,
                  b.with_dropout(b.product(precision_.qk_accumulator, along_values, turned(values)), first, count), -1);
      const Tensor ds = mul(p, sub(dp, delta));
      const Tensor keys = b.round(&AttentionPrecision::k, narrow(b.k, -2, first, count), -2);
      const Tensor part =
          mul(b.product(precision_.pv_accumulator, b.round(&AttentionPrecision::d_s, ds, -1), keys), b.scale);
      dq = dq.defined() ? add(dq, part) : part;
      const Tensor across = turned(b.round(&AttentionPrecision::d_s, ds, -2));
      dk.push_back(mul(b.product(precision_.pv_accumulator, across, along_keys), b.scale));
      if (needs_input_grad(3)) dmask.push_back(ds);
    }
    return {dq, cat(dk, -2), cat(dv, -2), dmask.empty() ? Tensor() : gradient_of_mask(dmask, kept[3])};
  }

  std::string name() const override { return "scaled_dot_product_attention in blocks"; }
  const Replaced* replaces() const override { return &replaced_; }

 private:
  // Of an added mask, whose last dim may be 1.
  static Tensor gradient_of_mask(const std::vector<Tensor>& blocks, const Tensor& mask) {
    return sum_to(cat(blocks, -1), mask.sizes());
  }

  AttentionPrecision precision_;
  AttentionAttrs attrs_;
  RandomKey key_ = {};
  Replaced replaced_{OpId::scaled_dot_product_attention};
};

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
}

}  // namespace

void check_valid(const AttentionPrecision& a) {
  for (const auto& [name, field] : kAttentionFields) {
    const std::optional<Quantizer>& q = a.*field;
    if (!q) continue;
    in_context(name, [&] { check_valid(*q); });
    if (q->hadamard || q->center || has_kept_scale(q->scaling))
      throwf(
          "{}: attention takes scales from its own numbers: no delayed or learned scaling, no transform, no mean "
          "subtracted",
          name);
    if (q->gradient != QuantizerGradient::straight)
      throwf("{}: the gradient is {}; in attention it is straight", name, to_string(q->gradient));
  }
  for (const auto* sums : {&a.qk_accumulator, &a.pv_accumulator})
    if (*sums) check_valid(**sums);
  if (a.block < 1) throwf("block is {}; a block has at least 1 key", a.block);
  if (a.beta != 0 && !(a.beta > 1 && std::isfinite(a.beta)))
    throwf("beta is {}; allowed are 0 and finite numbers above 1", a.beta);
}

Tensor attention_in_blocks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                           const AttentionAttrs& attrs, const AttentionPrecision& precision, Loc loc) {
  in_context("attention in blocks", [&] { check_valid(precision); });
  check_inputs(q, k, v, mask, attrs);
  const auto recorded = [](const Tensor& t) { return t.defined() && needs_grad(t); };
  const bool backward =
      in_checkpoint() || (grad_enabled() && (recorded(q) || recorded(k) || recorded(v) || recorded(mask)));
  return apply(std::make_shared<BlockAttention>(precision, attrs, backward), {q, k, v, mask}, loc)[0];
}

}  // namespace gradual::amp
