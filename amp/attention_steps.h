// The steps of attention in blocks that its reference (attention.cpp) and its kernel (attention_kernel.h) share. Not a
// public header.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
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

inline bool of_backward(const AttentionField& field) { return field.name[0] == 'd'; }

// Of q, k and v, which the inputs begin with.
DType common_dtype(const std::vector<Tensor>& inputs);
inline Tensor turned(const Tensor& t) { return transpose(t, -2, -1); }

// One call: its operands in the compute type, and how its steps round and sum. What draws random numbers draws in the
// order of the calls.
struct AttentionSteps {
  const AttentionPrecision& precision;
  const AttentionAttrs& attrs;
  Tensor q, k, v, mask;
  Tensor queries;  // q, rounded for the scores
  Tensor kept;     // dropout of ones [.., L, S]; undefined: no dropout
  AttentionDraws draws;
  double scale = 0;
  bool shown = true;  // to observers, each rounding along its axis

  AttentionSteps(const AttentionPrecision& precision, const AttentionAttrs& attrs, const std::vector<Tensor>& inputs,
                 const AttentionDraws& draws, bool shown = true);

  std::int64_t keys() const { return k.size(-2); }
  // The keys of the block that begins with key `first`.
  std::int64_t block(std::int64_t first) const { return std::min<std::int64_t>(precision.block, keys() - first); }

  // Rounds `t` at the site PATH.name. Gradients are counted as errors, all else as activations.
  Tensor round(AttentionQuantizer quantizer, const Tensor& t, int axis);
  // Rounds `t`, which round() has rounded to `before`, along another axis. It returns `before` if the result is the
  // same and there is no observer.
  Tensor round_again(AttentionQuantizer quantizer, const Tensor& before, const Tensor& t, int axis);
  // The accumulator of the next product; none: f32 in any order.
  std::optional<Accumulator> sums(const std::optional<Accumulator>& named);
};

}  // namespace gradual::amp
