// What depends on the kind of a scaling. It is apart from the header: compilers take long for a visit of all kinds, and
// nvcc compiles no lambdas with constraints.
#include "scaling.h"

#include <optional>
#include <string_view>
#include <type_traits>
#include <variant>

namespace gradual {

std::string_view kind_name(const Scaling& scaling) {
  return std::visit([](const auto& kind) { return std::decay_t<decltype(kind)>::kKind; }, scaling);
}
ScaleUnit unit_of(const Scaling& scaling) {
  return std::visit([](const auto& kind) { return std::decay_t<decltype(kind)>::kUnit; }, scaling);
}

bool has_zero_points(const Scaling& scaling) {
  return std::visit([](const auto& kind) { return requires { kind.kZeroPoints; }; }, scaling);
}

bool has_random_scales(const Scaling& scaling) {
  if (is_any<EdenBlocks>(scaling)) return true;
  return of_kind(
      scaling, false, [](const auto& kind) requires std::is_same_v<decltype(kind.rule), CodedRule> {
        return kind.rule == CodedRule::stochastic;
      });
}

ScaledProduct product_of(const Scaling& scaling) {
  return of_kind(
      scaling, ScaledProduct::exact, [](const auto& kind) requires requires { kind.product; } { return kind.product; });
}
ScaleOracle oracle_of(const Scaling& scaling) {
  return of_kind(
      scaling, ScaleOracle::transformer_engine,
      [](const auto& kind) requires requires { kind.oracle; } { return kind.oracle; });
}
std::optional<ScaleRule> rule_of(const Scaling& scaling) {
  return of_kind(
      scaling, std::optional<ScaleRule>(),
      [](const auto& kind) requires std::is_same_v<decltype(kind.rule), ScaleRule> {
        return std::optional<ScaleRule>(kind.rule);
      });
}
int block_size(const Scaling& scaling) {
  return of_kind(
      scaling, 0, [](const auto& kind) requires requires { kind.block; } { return kind.block; });
}
int elements_together(const Scaling& scaling) {
  if (const auto* const eden = std::get_if<EdenBlocks>(&scaling)) return eden->group;
  if (const auto* const outer = std::get_if<DoubleBlocks>(&scaling)) return outer->outer;
  return block_size(scaling);
}
bool has_tiles(const Scaling& scaling) {
  return of_kind(
      scaling, false, [](const auto& kind) requires requires { kind.square; } { return kind.square; });
}

namespace {

// f(kind) for the scaling's kind if f takes it.
template <class F> void edit_kind(Scaling& scaling, const F& edit) {
  std::visit(
      [&](auto& kind) {
        if constexpr (std::is_invocable_v<const F&, decltype(kind)>) edit(kind);
      },
      scaling);
}
}  // namespace

void set_block(Scaling& scaling, int block) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.block; } { kind.block = block; });
}
void set_tiles(Scaling& scaling, bool tiles) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.square; } { kind.square = tiles; });
}
void set_oracle(Scaling& scaling, ScaleOracle oracle) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.oracle; } { kind.oracle = oracle; });
}
void set_product(Scaling& scaling, ScaledProduct product) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.product; } { kind.product = product; });
}
void set_rule(Scaling& scaling, ScaleRule rule) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.rule = rule; } { kind.rule = rule; });
}
void set_rule(Scaling& scaling, CodedRule rule) {
  edit_kind(
      scaling, [=](auto& kind) requires requires { kind.rule = rule; } { kind.rule = rule; });
}

}  // namespace gradual
