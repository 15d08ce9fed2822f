// The scaling of a quantizer: one of the kinds below. A new kind is a file like theirs and its name in the list here;
// how its scales are found for a tensor is in make_grid (quantizer.cpp) if it has no blocks.
#pragma once

#include <optional>
#include <string_view>
#include <type_traits>
#include <variant>

#include "amax_scale.h"
#include "coded_scale.h"
#include "delayed_scale.h"
#include "double_scale.h"
#include "eden_scale.h"
#include "given_scale.h"
#include "learned_scale.h"
#include "power_scale.h"
#include "range_scale.h"

namespace gradual {

// In JSON the first of the kinds with one name is the default.
using Scaling = std::variant<NoScale, FixedScale, TensorScale, TensorRange, DelayedScale, RowScale, RowRange,
                             PowerBlocks, FloatBlocks, CodedBlocks, RangeBlocks, PowerParts, FloatParts, CodedParts,
                             Nvfp4Blocks, EdenBlocks, DoubleBlocks, LearnedScale>;

// True if the scaling is one of these kinds.
template <class... Kinds> constexpr bool is_any(const Scaling& scaling) {
  return (std::holds_alternative<Kinds>(scaling) || ...);
}

// f(kind) for the scaling's kind if f takes it, else `otherwise`.
template <class Result, class S, class F> Result of_kind(S& scaling, Result otherwise, const F& f) {
  return std::visit(
      [&](auto& kind) -> Result {
        if constexpr (std::is_invocable_v<const F&, decltype(kind)>) return f(kind);
        else return otherwise;
      },
      scaling);
}

std::string_view kind_name(const Scaling& scaling);
ScaleUnit unit_of(const Scaling& scaling);
// True if a tensor has at most one scale.
inline bool per_tensor(const Scaling& scaling) { return unit_of(scaling) == ScaleUnit::tensor; }
bool has_zero_points(const Scaling& scaling);
// True if the scales of blocks are under one of the tensor.
inline bool has_two_levels(const Scaling& scaling) { return is_any<Nvfp4Blocks, EdenBlocks>(scaling); }
// True if a tensor's scale is kept from step to step instead of found from its numbers.
inline bool has_kept_scale(const Scaling& scaling) { return is_any<DelayedScale, LearnedScale>(scaling); }
// True if scales are rounded at random.
bool has_random_scales(const Scaling& scaling);

// Options that several kinds have, and what the others do.
ScaledProduct product_of(const Scaling& scaling);
ScaleOracle oracle_of(const Scaling& scaling);
// The rule of scales that are powers of two; none if they are not.
std::optional<ScaleRule> rule_of(const Scaling& scaling);
// The elements of a block along the contracted axis; 0: no blocks.
int block_size(const Scaling& scaling);
// The elements of a row whose scales depend on each other: those of a block, of MS-EDEN's group, of an outer block; 0:
// no blocks.
int elements_together(const Scaling& scaling);
bool has_tiles(const Scaling& scaling);

// Each changes an option of a scaling whose kind has it; another one stays as it is.
void set_block(Scaling& scaling, int block);
void set_tiles(Scaling& scaling, bool tiles);
void set_oracle(Scaling& scaling, ScaleOracle oracle);
void set_product(Scaling& scaling, ScaledProduct product);
void set_rule(Scaling& scaling, ScaleRule rule);
void set_rule(Scaling& scaling, CodedRule rule);

}  // namespace gradual
