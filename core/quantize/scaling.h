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
#include "given_scale.h"
#include "power_scale.h"
#include "range_scale.h"

namespace gradual {

// In JSON the first of the kinds with one name is the default.
using Scaling =
    std::variant<NoScale, FixedScale, TensorScale, TensorRange, DelayedScale, RowScale, RowRange, PowerBlocks,
                 FloatBlocks, CodedBlocks, RangeBlocks, PowerParts, FloatParts, CodedParts, Nvfp4Blocks>;

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

inline std::string_view kind_name(const Scaling& scaling) {
  return std::visit([](const auto& kind) { return std::decay_t<decltype(kind)>::kKind; }, scaling);
}
inline ScaleUnit unit_of(const Scaling& scaling) {
  return std::visit([](const auto& kind) { return std::decay_t<decltype(kind)>::kUnit; }, scaling);
}
// True if a tensor has at most one scale.
inline bool per_tensor(const Scaling& scaling) { return unit_of(scaling) == ScaleUnit::tensor; }
inline bool has_zero_points(const Scaling& scaling) {
  return std::visit([](const auto& kind) { return requires { kind.kZeroPoints; }; }, scaling);
}

// Options that several kinds have, and what the others do.
inline ScaledProduct product_of(const Scaling& scaling) {
  return of_kind(
      scaling, ScaledProduct::exact, [](const auto& kind) requires requires { kind.product; } { return kind.product; });
}
inline ScaleOracle oracle_of(const Scaling& scaling) {
  return of_kind(
      scaling, ScaleOracle::transformer_engine,
      [](const auto& kind) requires requires { kind.oracle; } { return kind.oracle; });
}
// The rule of scales that are powers of two; none if they are not.
inline std::optional<ScaleRule> rule_of(const Scaling& scaling) {
  return of_kind(
      scaling, std::optional<ScaleRule>(),
      [](const auto& kind) requires std::is_same_v<decltype(kind.rule), ScaleRule> {
        return std::optional<ScaleRule>(kind.rule);
      });
}
// The elements of a block along the contracted axis; 0: no blocks.
inline int block_size(const Scaling& scaling) {
  return of_kind(
      scaling, 0, [](const auto& kind) requires requires { kind.block; } { return kind.block; });
}
inline bool has_tiles(const Scaling& scaling) {
  return of_kind(
      scaling, false, [](const auto& kind) requires requires { kind.square; } { return kind.square; });
}

// Changes an option of a scaling whose kind has it; another one stays as it is.
template <class F> void edit_kind(Scaling& scaling, const F& edit) {
  std::visit(
      [&](auto& kind) {
        if constexpr (std::is_invocable_v<const F&, decltype(kind)>) edit(kind);
      },
      scaling);
}
inline void set_block(Scaling& scaling, int block) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.block; } { kind.block = block; });
}
inline void set_tiles(Scaling& scaling, bool tiles) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.square; } { kind.square = tiles; });
}
inline void set_oracle(Scaling& scaling, ScaleOracle oracle) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.oracle; } { kind.oracle = oracle; });
}
inline void set_product(Scaling& scaling, ScaledProduct product) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.product; } { kind.product = product; });
}
inline void set_rule(Scaling& scaling, ScaleRule rule) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.rule = rule; } { kind.rule = rule; });
}
inline void set_rule(Scaling& scaling, CodedRule rule) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.rule = rule; } { kind.rule = rule; });
}

}  // namespace gradual
