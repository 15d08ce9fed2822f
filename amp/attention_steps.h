// The steps of attention in blocks that its reference (attention.cpp) and its kernel (attention_kernel.h) share. Not a
// public header.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "../core/ops/ops.h"
#include "attention.h"

namespace gradual::amp {

using AttentionQuantizer = std::optional<Quantizer> AttentionPrecision::*;

// The attention whose backward runs on this thread, where it is no op of its own for observers; null: none.
inline constexpr auto attention_in_backward = per_thread<const Replaced*, struct OfAttention>;

// Each draw has a seed of its own, which follows from the call's key: a backward that runs again draws the same.
struct AttentionDraws {
  RandomKey key;
  std::uint64_t drawn;

  RandomKey next() {
    ++drawn;
    return {key.seed ^ (drawn * 0x9e3779b97f4a7c15), key.stream};
  }
};

const AttentionField& field_of(AttentionQuantizer quantizer);
std::size_t number_of(const AttentionField& field);  // in kAttentionFields

// An operand of a product, and the axis that the product contracts in the numbers that the operand is rounded from.
struct AttentionOperand {
  AttentionQuantizer quantizer;
  int axis;

  bool operator==(const AttentionOperand&) const = default;
};
enum class Contracts : std::uint8_t {
  head,     // the head's size
  keys,     // the keys of a block
  queries,  // all queries
};
struct AttentionProduct {
  std::string_view text;
  AttentionOperand operands[2];
  Contracts contracts;
  bool of_backward;
};
inline constexpr AttentionProduct kAttentionProducts[] = {
    {"Q K^T", {{&AttentionPrecision::q, -1}, {&AttentionPrecision::k, -1}}, Contracts::head, false},
    {"P V", {{&AttentionPrecision::p, -1}, {&AttentionPrecision::v, -2}}, Contracts::keys, false},
    {"P^T dO", {{&AttentionPrecision::p, -2}, {&AttentionPrecision::d_o, -2}}, Contracts::queries, true},
    {"dO V^T", {{&AttentionPrecision::d_o, -1}, {&AttentionPrecision::v, -1}}, Contracts::head, true},
    {"dS K", {{&AttentionPrecision::d_s, -1}, {&AttentionPrecision::k, -2}}, Contracts::keys, true},
    {"dS^T Q", {{&AttentionPrecision::d_s, -2}, {&AttentionPrecision::q, -2}}, Contracts::queries, true}};

// The transform of both operands of a product; none: not both have one.
HadamardSize transform_of(const AttentionPrecision& precision, const AttentionProduct& product);

// Of q, k and v, which the inputs begin with.
DType common_dtype(const std::vector<Tensor>& inputs);
inline Tensor turned(const Tensor& t) { return transpose(t, -2, -1); }

// What the steps of a call, forward or backward, do with the histories of delayed scales, and which fields report the
// largest magnitude that they round (AttentionScales::looked_at).
struct AttentionUse {
  AttentionHistories* histories = nullptr;
  QuantizeFor of_operands = QuantizeFor::evaluation;
  QuantizeFor of_errors = QuantizeFor::evaluation;
  AttentionFlags looked_at = {};
};

// For each field, the largest magnitude that the pass gives to its quantizer, a tensor [1]. It is undefined for fields
// that are not looked at and for fields that the pass does not round.
using AttentionAmaxes = std::array<Tensor, std::size(kAttentionFields)>;

// The scales with which a call's forward has rounded q, k, v and p. Backward has the same, though AmaxHistory::used may
// be that of a later call.
class ForwardScales {
 public:
  ForwardScales() = default;
  // After a forward pass on `device`.
  ForwardScales(const AttentionPrecision& precision, AttentionHistories& histories, Device device);
  // f() where the histories have these scales as their used ones. The host does not wait for a GPU.
  template <class F> auto within(const AttentionPrecision& precision, AttentionHistories& histories, const F& f) {
    exchange(precision, histories);
    try {
      auto result = f();
      exchange(precision, histories);
      return result;
    } catch (...) {
      exchange(precision, histories);
      throw;
    }
  }

 private:
  void exchange(const AttentionPrecision& precision, AttentionHistories& histories);

  Device device_ = Device::cpu();
  std::array<float, std::size(kAttentionFields)> of_fields_ = {};
  std::array<Tensor, std::size(kAttentionFields)> on_gpu_ = {};  // f32 [1]
};

// The largest magnitude of numbers that the kernel rounds; NaN if one is.
class AmaxOfCall {
 public:
  void add(const float* values, std::int64_t n);  // any thread may call it
  float value() const { return amax_; }

 private:
  std::mutex mutex_;
  float amax_ = 0;
};

// One call: its operands in the compute type, and how its steps round and sum. What draws random numbers draws in the
// order of the calls.
struct AttentionSteps {
  const AttentionPrecision& precision;
  const AttentionAttrs& attrs;
  Tensor q, k, v, mask;
  Tensor queries;  // q, rounded for the scores
  Tensor kept;     // dropout of ones [.., L, S]; undefined: no dropout
  AttentionDraws draws;
  AttentionUse use;
  double scale = 0;
  bool shown = true;  // to observers, each rounding along its axis
  // By product: the elements of a group that its transform negates; empty: it has none. Forward and backward have the
  // same.
  std::array<std::vector<bool>, std::size(kAttentionProducts)> signs = {};

  AttentionSteps(const AttentionPrecision& precision, const AttentionAttrs& attrs, const std::vector<Tensor>& inputs,
                 const AttentionDraws& draws, const AttentionUse& use, bool shown = true);

  std::int64_t keys() const { return k.size(-2); }
  // The keys of the block that begins with key `first`.
  std::int64_t block(std::int64_t first) const { return std::min<std::int64_t>(precision.block, keys() - first); }

  // `t` as the product that contracts `axis` reads it before it is rounded: transformed, if both operands are.
  Tensor before_rounding(AttentionQuantizer quantizer, const Tensor& t, int axis) const;
  // Rounds `t`, transformed first, at the site PATH.name. Gradients are counted as errors, all else as activations.
  Tensor round(AttentionQuantizer quantizer, const Tensor& t, int axis);
  // Rounds `t`, which round() has rounded to `before`, along another axis. It returns `before` if the result is the
  // same and there is no observer.
  Tensor round_again(AttentionQuantizer quantizer, const Tensor& before, const Tensor& t, int axis);
  QuantizeFor use_of(const AttentionField& field) const { return field.of_backward ? use.of_errors : use.of_operands; }
  // Where the kernel collects the largest magnitude that it rounds with the field. Null if the field is not looked at
  // and has no delayed scale. stage_amaxes() puts the values of delayed scales into their histories.
  AmaxOfCall* amax_of(AttentionQuantizer quantizer);
  void stage_amaxes();
  // What round() and the kernel have found for the fields that are looked at.
  AttentionAmaxes largest() const;
  // The accumulator of the next product; none: f32 in any order.
  std::optional<Accumulator> sums(const std::optional<Accumulator>& named);

 private:
  std::array<std::unique_ptr<AmaxOfCall>, std::size(kAttentionFields)> amaxes_ = {};  // of the kernel
  AttentionAmaxes largest_ = {};                                                      // of round()

  bool stages(const AttentionField& field) const;
  // Updates the field's largest magnitude with the numbers of t.
  void add_largest(const AttentionField& field, const Tensor& t);
  const std::vector<bool>* signs_of(AttentionQuantizer quantizer, int axis) const;  // null: no transform
  // True if `t` is rounded to the same numbers along either axis.
  bool has_no_axis(AttentionQuantizer quantizer) const;
};

}  // namespace gradual::amp
