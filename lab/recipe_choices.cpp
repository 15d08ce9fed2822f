#include "recipe_choices.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "../amp/site_name.h"
#include "../core/support/error.h"
#include "../inspect/cures.h"
#include "../inspect/f32_ops.h"

namespace gradual::lab {
namespace {

using amp::Recipe;
using inspect::Exact;
using inspect::ExactPart;

constexpr OpId kNorms[] = {OpId::batch_norm, OpId::layer_norm, OpId::rms_norm};

bool has_half_parameters(const Recipe& r) { return r.mode == amp::Mode::half || r.mode == amp::Mode::pure; }

// FP32 masters, which other low-precision updates exclude.
Recipe with_masters(Recipe r) {
  r.masters = amp::Masters::per_tensor;
  r.update = optim::LowPrecisionUpdate::none;
  return r;
}

// What a quantisation keeps between steps, in high precision.
Recipe without(Recipe r, std::optional<Quantizer> amp::Quantization::*kept) {
  (*r.quantization.*kept).reset();
  // Without rounded weights there is no error for the momentum to take.
  const bool has_eco = r.update == optim::LowPrecisionUpdate::eco && !has_half_parameters(r);
  if (has_eco && !r.quantization->weight) r.update = optim::LowPrecisionUpdate::none;
  return r;
}

// Where layers and lines have numbers that the recipe rounds.
struct Places {
  std::vector<std::string> sites = {};  // layers, then lines

  void add(const std::string& site) {
    if (!site.empty() && std::ranges::find(sites, site) == sites.end()) sites.push_back(site);
  }
};

// The layers of which something was rounded or summed in a narrow accumulator, in order; then the program's lines of
// such ops outside of all modules.
std::vector<std::string> sites_of(const Result& run, const inspect::ObservedStep& first) {
  Places places;
  for (const CastRow& row : run.casts) places.add(amp::site_name(row.layer).layer);
  std::vector<std::string> lines;
  for (const inspect::LedgerRow& row : first.ledger.rows()) {
    const bool rounds = row.source == inspect::Source::rewritten || row.source == inspect::Source::quantizer;
    if (row.phase == gradual::Phase::optimizer || (!rounds && row.accumulator.empty())) continue;
    places.add(amp::site_name(row.module).layer);
    if (row.module.empty() && !row.own_line) lines.push_back(row.line);
  }
  for (const std::string& line : lines) places.add(line);
  return places.sites;
}

// The recipe's quantisation and those that it names for modules and for later steps.
std::vector<amp::Quantization> all_of(const Recipe& recipe) {
  std::vector<amp::Quantization> all = {*recipe.quantization};
  const auto add = [&all](const std::string& name) {
    if (const auto& named = amp::recipe(name).quantization) all.push_back(*named);
  };
  for (const auto& [module, name] : recipe.quantization->modules) add(name);
  for (const amp::Phase& phase : recipe.schedule) add(phase.recipe);
  return all;
}

template <class Field> bool any_has(const std::vector<amp::Quantization>& all, const Field& field) {
  return std::ranges::any_of(all, [&](const amp::Quantization& q) { return (q.*field).has_value(); });
}

// Of attention in blocks: each operand of each layer, whose site is a layer of its own, and the sums of a layer.
void add_attention(std::vector<RecipeChoice>& choices, const amp::AttentionPrecision& attention,
                   const std::vector<std::string>& sites) {
  Places summed;
  for (const std::string& site : sites) {
    const std::size_t dot = site.rfind('.');
    const std::string name = dot == std::string::npos ? site : site.substr(dot + 1);
    const auto* const field = std::ranges::find(amp::kAttentionFields, name, &amp::AttentionField::name);
    if (field == std::end(amp::kAttentionFields) || !(attention.*field->quantizer)) continue;
    choices.push_back({.exact = Exact{.part = ExactPart::operand, .site = site}});
    if (attention.qk_accumulator || attention.pv_accumulator)
      summed.add(dot == std::string::npos ? "" : site.substr(0, dot));
  }
  for (const std::string& layer : summed.sites)
    choices.push_back({.exact = Exact{.part = ExactPart::sum, .site = layer}});
}

void add_quantisers(std::vector<RecipeChoice>& choices, const Recipe& recipe, const std::vector<std::string>& sites) {
  if (recipe.quantization->attention) add_attention(choices, *recipe.quantization->attention, sites);
  const std::vector<amp::Quantization> all = all_of(recipe);
  for (const std::string& site : sites) {
    for (const amp::Role role : {amp::Role::activation, amp::Role::weight, amp::Role::error})
      for (const auto field : amp::kOperandQuantizers[static_cast<int>(role)]) {
        const auto* const named = std::ranges::find(amp::kQuantizerFields, field, &amp::QuantizerField::quantizer);
        if (any_has(all, field))
          choices.push_back({.exact = Exact{.part = ExactPart::operand, .site = site, .operand = named->name}});
      }
    if (any_has(all, &amp::Quantization::accumulator))
      choices.push_back({.exact = Exact{.part = ExactPart::sum, .site = site}});
    if (recipe.quantization->result) choices.push_back({.exact = Exact{.part = ExactPart::result, .site = site}});
  }
}

// The places whose ops of forward compute in a half dtype: layers, then the program's lines outside of all modules.
void add_places_of_half(std::vector<RecipeChoice>& choices, const inspect::ObservedStep& first) {
  Places places;
  std::vector<std::string> lines;
  for (const inspect::LedgerRow& row : first.ledger.rows()) {
    const bool half = is_half(row.from) || is_half(row.to);
    if (row.phase != gradual::Phase::forward || !half || !inspect::computes(row.id)) continue;
    places.add(amp::site_name(row.module).layer);
    if (row.module.empty() && !row.own_line) lines.push_back(row.line);
  }
  for (const std::string& line : lines) places.add(line);
  for (const std::string& site : places.sites)
    choices.push_back({.exact = Exact{.part = ExactPart::ops, .site = site}});
}

// Single fields of the recipe that no place has: what is kept between steps, and the loss scale.
void add_fields(std::vector<RecipeChoice>& choices, const Recipe& recipe) {
  const auto add = [&choices](std::function<Recipe(Recipe)> edit) {
    choices.push_back({.edit = std::move(edit), .goes_first = true});
  };
  add([](Recipe r) {
    r.optimizer_state = DType::f32;
    return r;
  });
  for (const auto kept : {&amp::Quantization::moment1, &amp::Quantization::moment2, &amp::Quantization::weight_gradient,
                          &amp::Quantization::weight, &amp::Quantization::master})
    if (recipe.quantization && *recipe.quantization.*kept)
      add([kept](Recipe r) { return without(std::move(r), kept); });
  if (recipe.mode != amp::Mode::full && gradient_sums(recipe) != autograd::GradientSums::f32)
    add([](Recipe r) {
      r.gradients = autograd::GradientSums::f32;
      return r;
    });
  // After the sums of gradients: with masters these are f32 too, unless the recipe names them.
  if (has_half_parameters(recipe) && recipe.masters == amp::Masters::none) add(with_masters);
  if (recipe.averages) add([](Recipe r) { return inspect::cures::averages_in_f32(std::move(r)).recipe; });
  if (recipe.dtype == DType::f16)
    add([](Recipe r) {
      r.scaling = optim::GradScalerOptions{};
      return r;
    });
  if (recipe.tf32)
    add([](Recipe r) {
      r.tf32 = false;
      return r;
    });
}

bool takes_f32(OpId op) try {
  amp::PolicyTable().set(op, amp::CastPolicy::fp32());
  return true;
} catch (const Error&) { return false; }

RecipeChoice in_f32(OpId op) {
  const std::vector<std::string> alone = {std::string(to_string(op))};
  const auto edit = [alone](Recipe r) { return inspect::cures::ops_in_f32(std::move(r), alone).recipe; };
  return {.edit = edit, .goes_last = true};
}

// Of half dtypes: each op of the first step, and of those that it may consist of.
void add_ops(std::vector<RecipeChoice>& choices, const Recipe& recipe, const inspect::ObservedStep& first) {
  std::vector<OpId> ops;
  const amp::PolicyTable table = policy_table(recipe);
  const auto add = [&](OpId op) {
    const bool known = std::ranges::find(ops, op) != ops.end();
    if (known || table[op].kind == amp::PolicyKind::fp32 || !takes_f32(op)) return;
    ops.push_back(op);
    choices.push_back(in_f32(op));
  };
  for (const char* name : {"matmul", "linear", "conv2d", "exp", "log", "softmax", "log_softmax", "sum", "mean",
                           "square", "sqrt", "div", "mul", "add", "sub", "relu", "gelu", "cross_entropy"})
    add(op_from_name(name));
  for (const inspect::LedgerRow& row : first.ledger.rows())
    if (row.phase == gradual::Phase::forward && op_info(row.id).kind != OpKind::View) add(row.id);
  for (const OpId norm : kNorms) add(norm);
}

}  // namespace

std::vector<RecipeChoice> choices_of_norms(const Recipe& recipe) {
  std::vector<RecipeChoice> choices;
  for (const OpId norm : kNorms)
    if (recipe.mode == amp::Mode::pure && takes_f32(norm)) choices.push_back(in_f32(norm));
  return choices;
}

std::vector<RecipeChoice> choices_of(const Recipe& recipe, const Result& run, const inspect::ObservedStep& first) {
  std::vector<RecipeChoice> choices;
  if (recipe.quantization) add_quantisers(choices, recipe, sites_of(run, first));
  add_fields(choices, recipe);
  if (recipe.mode == amp::Mode::full) return choices;
  if (!recipe.quantization) add_places_of_half(choices, first);
  add_ops(choices, recipe, first);
  if (recipe.mode == amp::Mode::pure)
    choices.push_back(
        {.edit = [](Recipe r) { return inspect::cures::norms_in_f32(std::move(r)).recipe; }, .goes_last = true});
  return choices;
}

}  // namespace gradual::lab
