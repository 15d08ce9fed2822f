#include "diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "../core/quantize/what_if.h"
#include "../core/support/error.h"

namespace gradual::inspect {
namespace {

using amp::Recipe, amp::Role;

// Shares, in percent, from which on something is worth a finding.
constexpr double kMostVanish = 25, kMostUnderflow = 5, kMostZero = 60, kMostClipped = 1;
constexpr double kMostArrives = 0.75;  // of the intended update

// An edited recipe, and in words what was edited.
struct Cure {
  Recipe recipe;
  std::string remedy;
};
Cure with_masters(Recipe r) {
  r.masters = amp::Masters::per_tensor;
  r.update = optim::LowPrecisionUpdate::none;
  r.optimizer_state = DType::f32;
  return {r, "FP32 masters, the optimizer's arithmetic and state in f32"};
}
Cure in_bf16(Recipe r) {
  std::string remedy = "bf16, which has the range of f32";
  if (r.optimizer_state == DType::f16) r = with_masters(r).recipe, remedy += "; FP32 masters";
  r.dtype = DType::bf16;
  r.scaling.reset();
  return {r, remedy};
}
Cure with_dynamic_scale(Recipe r) {
  if (r.mode == amp::Mode::pure || r.mode == amp::Mode::half) r = with_masters(r).recipe;
  r.scaling = optim::GradScalerOptions{};
  return {r, "dynamic loss scaling"};
}
// For every quantiser of contractions that has none.
Cure with_scales(Recipe r) {
  for (const amp::QuantizerField& field : amp::kQuantizerFields)
    if (auto& q = *r.quantization.*field.quantizer; q && q->scaling.kind == ScalingKind::none) {
      q->scaling.kind = ScalingKind::tensor;
      q->overflow = Overflow::saturate;
    }
  return {r, "one scale a tensor, from its own amax"};
}
bool has_unscaled(const Recipe& r) { return r.quantization && with_scales(r).recipe.quantization != r.quantization; }

// Not where the edit changes nothing, or the recipe's mode does not take it.
void set_cure(Finding& f, const Recipe& from, Cure cure) {
  try {
    check_valid(cure.recipe);
    if (amp::to_json(cure.recipe) == amp::to_json(from)) return;
  } catch (const Error&) { return; }
  f.cure = std::move(cure.recipe);
  f.remedy = std::move(cure.remedy);
}

// Whether a quantiser, or a product of quantised operands, made a row.
bool is_quantised(const LedgerRow& r) { return r.op.find("quantiz") != std::string::npos; }

std::string in_layer(const std::string& path) { return path.empty() ? "ops outside of all layers" : "layer " + path; }

std::string percent(double share) { return fmt::format("{:.3g}%", share); }

Finding at(const LedgerRow& r, std::int64_t step, std::string cause) {
  return {.cause = std::move(cause),
          .phase = std::string(to_string(r.phase)),
          .op = r.op,
          .site = !r.parameter.empty() ? r.parameter : r.module,
          .step = step};
}

std::string lost(const Numbers& n) {
  std::string text;
  if (n.inf) text = fmt::format("{} of {} elements are Inf", n.inf, n.elements);
  if (n.nan) text += fmt::format("{}{} NaN", text.empty() ? "" : " and ", n.nan);
  return text + (n.inf == 0 ? fmt::format(" of {} elements", n.elements) : "");
}

Finding of_optimizer(const LedgerRow& r, const Evidence& e) {
  Finding f = at(r, e.nonfinite_step, "update-overflow");
  const bool adam = r.state.size() == 2;
  std::string became = r.numbers.finite() ? "" : fmt::format(", and in {} {}", r.parameter, lost(r.numbers));
  if (adam && r.eps_is_zero && r.state[1].zeros > 0) {
    f.cause = "adam-eps";
    f.sentence = fmt::format("{} of {}: {} of its second moments and eps {} are 0 in {}{}", r.op, r.parameter,
                             percent(r.state[1].zero_percent()), r.eps, to_string(r.from), became);
  } else if (adam && !r.state[1].finite()) {
    f.cause = "second-moment";
    f.sentence = fmt::format("{} of {}: its second moment, a square of the gradient, overflows {}: {}", r.op,
                             r.parameter, to_string(r.from), lost(r.state[1]));
  } else {
    f.sentence = fmt::format("{} of {} gives numbers beyond {}{}", r.op, r.parameter, to_string(r.from), became);
  }
  if (is_half(r.from)) set_cure(f, *e.recipe, with_masters(*e.recipe));
  return f;
}

bool sums_or_exponentials(const LedgerRow& r) {
  using enum OpKind;
  return r.op == "square" || r.kind == Transcendental || r.kind == Reduction || r.kind == Normalization ||
         r.kind == Loss;
}

Finding of_row(const LedgerRow& r, const Evidence& e) {
  if (r.phase == Phase::optimizer) return of_optimizer(r, e);
  const bool forward = r.phase == Phase::forward;
  const bool quantised = is_quantised(r);
  const bool low = is_half(r.to) || is_f8(r.to) || quantised;
  Finding f = at(r, e.nonfinite_step,
                 !forward                  ? "gradient-overflow"
                 : sums_or_exponentials(r) ? "reduction-overflow"
                                           : "activation-overflow");
  if (!low) {
    f.cause = "arithmetic";
    f.precision = false;
  }
  f.sentence =
      fmt::format("{} gives numbers beyond {}: {}{}", r.site(), to_string(r.to), lost(r.numbers),
                  r.numbers.largest > 0 ? fmt::format("; the largest finite one is {:.3g}", r.numbers.largest) : "");
  if (quantised && has_unscaled(*e.recipe)) set_cure(f, *e.recipe, with_scales(*e.recipe));
  else if (r.to == DType::f16) set_cure(f, *e.recipe, in_bf16(*e.recipe));
  return f;
}

std::optional<Finding> of_nonfinite(const Evidence& e) {
  if (!e.nonfinite) return {};
  if (const LedgerRow* r = e.nonfinite->first_nonfinite()) return of_row(*r, e);
  const auto& rows = e.nonfinite->rows();
  const auto first = std::ranges::find_if(rows, [](const LedgerRow& r) { return !r.numbers.finite(); });
  if (first == rows.end() || first->phase != Phase::forward) return {};
  Finding f = at(*first, e.nonfinite_step, "data");
  f.precision = false;
  f.sentence = fmt::format("the batch holds NaN or Inf: {} is the first op that reads it", first->site());
  return f;
}

std::optional<Finding> of_skips(const Evidence& e) {
  if (e.steps == 0 || 2 * e.skipped < e.steps) return {};
  Finding f{.cause = "scale-too-high"};
  std::string where;
  if (const LedgerRow* r = e.skipped_step ? e.skipped_step->first_nonfinite() : nullptr) {
    f.phase = to_string(r->phase), f.op = r->op, f.site = !r->parameter.empty() ? r->parameter : r->module;
    where = fmt::format(": {} overflows {}", r->site(), to_string(r->to));
  }
  const bool dynamic = e.recipe->scaling && e.recipe->scaling->dynamic;
  f.sentence = fmt::format("{} of {} steps are skipped at the {} loss scale {}{}", e.skipped, e.steps,
                           dynamic ? "dynamic" : "static", scale_text(e.last_scale), where);
  set_cure(f, *e.recipe, dynamic ? in_bf16(*e.recipe) : with_dynamic_scale(*e.recipe));
  return f;
}

// What becomes zero or exceeds the format, the worst layer of each role: errors from the loss backwards.
double zero_percent(const CastCounts& c) {
  return c.elements ? 100 * static_cast<double>(c.zeros + c.underflow) / static_cast<double>(c.elements) : 0;
}

std::vector<Finding> of_casts(const Evidence& e) {
  std::vector<Finding> found;
  if (amp::counted_as_if(*e.recipe)) return found;
  struct Worst {
    std::string layer;
    double percent = 0;
  };
  std::map<Role, Worst> small, large;
  const auto keep = [](Worst& worst, const std::string& layer, double percent) {
    if (percent > worst.percent) worst = {layer, percent};
  };
  for (const auto& [key, tally] : e.casts) {
    keep(small[key.first], key.second, tally.underflow_percent());
    keep(large[key.first], key.second, tally.overflow_percent());
  }
  const std::string format = e.recipe->quantization ? "its format" : std::string(to_string(e.recipe->dtype));
  const auto add = [&](Finding f, bool too_small) {
    const Recipe& r = *e.recipe;
    if (has_unscaled(r)) set_cure(f, r, with_scales(r));
    else if (!r.quantization && r.dtype == DType::f16)
      set_cure(f, r, too_small && !(r.scaling && r.scaling->dynamic) ? with_dynamic_scale(r) : in_bf16(r));
    found.push_back(std::move(f));
  };
  // The layer, counted from the loss, from which on nearly all errors are zero.
  for (auto layer = e.layers.rbegin(); layer != e.layers.rend(); ++layer) {
    const auto tally = e.casts.find({Role::error, *layer});
    if (tally == e.casts.end()) continue;
    const double zero = zero_percent(tally->second.counts), underflow = tally->second.underflow_percent();
    if (zero < kMostZero || underflow == 0) continue;
    add({.cause = "gradient-underflow",
         .phase = "backward",
         .site = *layer,
         .sentence = fmt::format(
             "{} of the errors that {} hands back are 0 in {}, {} because they underflow: the layers before it "
             "learn little",
             percent(zero), in_layer(*layer), format, percent(underflow))},
        true);
    break;
  }
  for (const Role role : {Role::error, Role::weight_gradient, Role::activation, Role::weight}) {
    const bool gradient = role == Role::error || role == Role::weight_gradient;
    const std::string phase = gradient ? "backward" : "forward";
    if (const Worst& w = large[role]; w.percent > kMostClipped)
      add({.cause = "clipping",
           .phase = phase,
           .site = w.layer,
           .sentence = fmt::format("{} of the {}s of {} exceed the largest number of {}", percent(w.percent),
                                   to_string(role), in_layer(w.layer), format)},
          false);
    if (const Worst& w = small[role]; w.percent > kMostUnderflow && !(gradient && !found.empty()))
      add({.cause = gradient ? "gradient-underflow" : "format-range",
           .phase = phase,
           .site = w.layer,
           .sentence = fmt::format("{} of the {}s of {} become 0 in {}", percent(w.percent), to_string(role),
                                   in_layer(w.layer), format)},
          true);
  }
  return found;
}

std::optional<Finding> of_updates(const Evidence& e) {
  std::map<std::string, Update> sums;
  for (const Update& u : e.updates) sums[u.parameter] += u;
  const Update* worst = nullptr;
  std::int64_t intended = 0, vanished = 0;
  double wanted = 0, made = 0;
  for (const auto& [name, s] : sums) {
    intended += s.intended, vanished += s.vanished;
    wanted += s.intended_squares, made += s.product;
    if (!worst || s.vanished_percent() > worst->vanished_percent()) worst = &s;
  }
  if (!worst || intended == 0 || 100.0 * static_cast<double>(vanished) / static_cast<double>(intended) < kMostVanish)
    return {};
  if (made > kMostArrives * wanted) return {};  // stochastic updates: most stay, and the others make up for it
  Finding f{.cause = "update-vanishes", .phase = "optimizer", .op = worst->op, .site = worst->parameter};
  f.sentence =
      fmt::format("{} of all updates vanish, for they are below half an ulp of the weights in {}; most in {}: {}",
                  percent(100.0 * static_cast<double>(vanished) / static_cast<double>(intended)),
                  to_string(e.recipe->dtype), worst->parameter, percent(worst->vanished_percent()));
  set_cure(f, *e.recipe, with_masters(*e.recipe));
  return f;
}

// The fields of `to` that differ, within objects as well.
nlohmann::ordered_json patch(const nlohmann::ordered_json& from, const nlohmann::ordered_json& to) {
  if (!from.is_object() || !to.is_object()) return to;
  nlohmann::ordered_json changes = nlohmann::ordered_json::object();
  for (const auto& [key, value] : to.items())
    if (!from.contains(key)) changes[key] = value;
    else if (from[key] != value) changes[key] = patch(from[key], value);
  return changes;
}

}  // namespace

std::vector<Finding> diagnose(const Evidence& e) {
  // What is not finite or is skipped explains all that follows from it.
  if (auto f = of_nonfinite(e)) return {std::move(*f)};
  if (auto f = of_skips(e)) return {std::move(*f)};
  if (const LedgerRow* r = e.overflowing_step ? e.overflowing_step->first_nonfinite() : nullptr;
      r && r->phase == Phase::forward)
    return {of_row(*r, e)};
  std::vector<Finding> all = of_casts(e);
  if (auto f = of_updates(e)) all.insert(all.begin(), std::move(*f));
  return all;
}

std::string edit(const amp::Recipe& from, const amp::Recipe& to) {
  const auto parsed = [](Recipe r) {
    r.name = "edited", r.description.clear();
    return nlohmann::ordered_json::parse(amp::to_json(r));
  };
  return patch(parsed(from), parsed(to)).dump();
}

amp::Recipe edited(const amp::Recipe& recipe, const std::string& patch) {
  nlohmann::ordered_json whole = nlohmann::ordered_json::parse(amp::to_json(recipe));
  whole.merge_patch(nlohmann::ordered_json::parse(patch));
  whole["name"] = "cured-" + recipe.name;
  return amp::recipe_from_json(whole.dump());
}

}  // namespace gradual::inspect
