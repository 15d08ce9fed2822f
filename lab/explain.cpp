#include "explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "../amp/site_name.h"
#include "../core/files/json_text.h"
#include "../core/support/throwf.h"
#include "../inspect/cures.h"

namespace gradual::lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAverts = 0.8;            // of a loss's failure
constexpr std::int64_t kTrials = 16;       // for which the budget should suffice
constexpr std::int64_t kCheckedSteps = 3;  // of the replay without a change

// A thing that can be made exact: by an intervention, or by an edit of the recipe.
struct Unit {
  std::vector<inspect::Exact> exact = {};
  std::function<amp::Recipe(const amp::Recipe&)> edit = {};
};
using Units = std::vector<Unit>;

// The layers of which something was rounded, in order.
std::vector<std::string> layers_of(const Result& run) {
  std::vector<std::string> layers;
  for (const CastRow& row : run.casts) {
    const std::string layer = amp::site_name(row.layer).layer;
    if (!layer.empty() && std::ranges::find(layers, layer) == layers.end()) layers.push_back(layer);
  }
  return layers;
}

// Of attention in blocks: each operand of each layer, whose site is a layer of its own, and the sums of a layer.
Units units_of_attention(const amp::AttentionPrecision& attention, const std::vector<std::string>& layers) {
  Units units;
  std::vector<std::string> summed;
  for (const std::string& site : layers) {
    const std::size_t dot = site.rfind('.');
    const std::string name = dot == std::string::npos ? site : site.substr(dot + 1);
    const auto* const field = std::ranges::find(amp::kAttentionFields, name, &amp::AttentionField::name);
    if (field == std::end(amp::kAttentionFields) || !(attention.*field->quantizer)) continue;
    units.push_back({.exact = {{.part = inspect::ExactPart::operand, .site = site}}});
    const std::string layer = dot == std::string::npos ? "" : site.substr(0, dot);
    const bool known = std::ranges::find(summed, layer) != summed.end();
    if (known || !(attention.qk_accumulator || attention.pv_accumulator)) continue;
    summed.push_back(layer);
    units.push_back({.exact = {{.part = inspect::ExactPart::sum, .site = layer}}});
  }
  return units;
}

Units units_of(const amp::Recipe& recipe, const Result& run) {
  Units units;
  if (const auto& q = recipe.quantization) {
    if (q->attention) units = units_of_attention(*q->attention, layers_of(run));
    for (const std::string& layer : layers_of(run)) {
      for (const auto& operand : amp::kOperandQuantizers)
        for (const auto field : operand) {
          const auto named = std::ranges::find(amp::kQuantizerFields, field, &amp::QuantizerField::quantizer);
          const inspect::Exact exact{.part = inspect::ExactPart::operand, .site = layer, .operand = named->name};
          const bool known = !units.empty() && units.back().exact == std::vector{exact};
          const bool of_product = field != &amp::Quantization::weight_gradient;
          if (of_product && !known && ((*q).*field)) units.push_back({.exact = {exact}});
        }
      if (q->accumulator) units.push_back({.exact = {{.part = inspect::ExactPart::sum, .site = layer}}});
      if (q->result) units.push_back({.exact = {{.part = inspect::ExactPart::result, .site = layer}}});
    }
    const amp::Recipe kept = inspect::cures::masters(recipe).recipe;
    if (amp::to_json(kept) != amp::to_json(recipe))
      units.push_back({.edit = [](const amp::Recipe& r) { return inspect::cures::masters(r).recipe; }});
    return units;
  }
  units.push_back({.edit = [](const amp::Recipe& r) { return inspect::cures::masters(r).recipe; }});
  units.push_back({.edit = [](const amp::Recipe& r) { return inspect::cures::norms_in_f32(r).recipe; }});
  units.push_back({.edit = [](const amp::Recipe& r) { return inspect::cures::dynamic_scale(r).recipe; }});
  for (const char* op : {"matmul", "linear", "conv2d", "exp", "log", "softmax", "log_softmax", "sum", "mean", "square",
                         "sqrt", "div", "mul", "add", "sub", "relu", "gelu", "cross_entropy"})
    units.push_back({.edit = [op](const amp::Recipe& r) { return inspect::cures::ops_in_f32(r, {op}).recipe; }});
  return units;
}

// Searches sets of units by trials.
class Search {
 public:
  Search(const amp::Recipe& recipe, Trials& trials) : recipe_(recipe), trials_(trials) {}

  Change change_of(const Units& units) const {
    Change change;
    amp::Recipe edited = recipe_;
    for (const Unit& u : units) {
      change.exact.insert(change.exact.end(), u.exact.begin(), u.exact.end());
      if (u.edit) edited = u.edit(edited);
    }
    if (amp::to_json(edited) != amp::to_json(recipe_)) change.edit = inspect::edit(recipe_, edited);
    return change;
  }

  double undone(const Change& change) {
    ++tried_;
    const std::optional<double> share = trials_.undone(change);
    if (!share && trials_.spent() + trials_.failure().steps > trials_.budget()) ended_ = true;
    return share.value_or(-1);
  }
  bool averts(const Change& change) {
    const double least = trials_.failure().kind == FailureKind::divergence ? 1 : kAverts;
    return undone(change) >= least;
  }

  // ddmin: a 1-minimal subset of units that avert the failure, if the budget lasts.
  Units minimal(Units units) {
    std::size_t parts = 2;
    while (units.size() > 1 && !ended_) {
      const std::size_t size = (units.size() + parts - 1) / parts;
      const auto smaller = one_smaller(units, size);
      if (smaller) {
        parts = smaller->size() <= size ? 2 : std::max<std::size_t>(2, parts - 1);
        units = *smaller;
        continue;
      }
      if (parts >= units.size()) return units;
      parts = std::min(units.size(), 2 * parts);
    }
    return units;
  }

  // The steps in which the interventions are needed: as few as possible at the end, then at the begin.
  void narrow(Change& change, std::int64_t steps) {
    if (change.exact.empty() || !change.edit.empty()) return;
    const auto within = [&](std::int64_t first, std::int64_t last) {
      Change c = change;
      for (inspect::Exact& e : c.exact) {
        e.first = first;
        e.last = last;
      }
      return c;
    };
    std::int64_t first = 0;
    std::int64_t last = steps - 1;
    for (std::int64_t low = 0; low < last && !ended_;) {
      const std::int64_t middle = (low + last) / 2;
      if (averts(within(first, middle))) last = middle;
      else low = middle + 1;
    }
    for (std::int64_t high = last; first < high && !ended_;) {
      const std::int64_t middle = (first + high + 1) / 2;
      if (averts(within(middle, last))) first = middle;
      else high = middle - 1;
    }
    if (first > 0 || last < steps - 1) change = within(first, last);
  }

  bool ended() const { return ended_; }
  std::int64_t tried() const { return tried_; }

 private:
  // A part of `size` units that averts the failure, or what is left without a part.
  std::optional<Units> one_smaller(const Units& units, std::size_t size) {
    for (const bool complement : {false, true})
      for (std::size_t at = 0; at < units.size() && !ended_; at += size) {
        Units chosen;
        for (std::size_t i = 0; i < units.size(); ++i)
          if ((i >= at && i < at + size) != complement) chosen.push_back(units[i]);
        if (chosen.size() < units.size() && !chosen.empty() && averts(change_of(chosen))) return chosen;
      }
    return {};
  }

  const amp::Recipe& recipe_;
  Trials& trials_;
  bool ended_ = false;
  std::int64_t tried_ = 0;
};

// Units that fit the model: with the others no step runs.
Units fitting(const Units& units, const amp::Recipe& recipe, Trials& trials) {
  Units kept;
  for (const Unit& u : units) {
    if (u.edit) {
      const amp::Recipe edited = u.edit(recipe);
      const bool changes = amp::to_json(edited) != amp::to_json(recipe);
      if (!changes || !trials.runs(inspect::edit(recipe, edited))) continue;
    }
    kept.push_back(u);
  }
  return kept;
}

}  // namespace

Explanation explain_run(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, std::uint64_t seed,
                        const Options& options, const Result& run, const Result& fp32) {
  const std::int64_t all = std::max(run.steps, fp32.steps);
  Trials trials(make_model, data, recipe, seed, options, run, fp32,
                options.explain_steps < 0 ? all : options.explain_steps);
  const auto first = static_cast<std::ptrdiff_t>(std::min<std::size_t>(run.curve.loss.size(), kCheckedSteps));
  const std::vector<double> again = trials.losses({}, first);
  if (!std::equal(again.begin(), again.end(), run.curve.loss.begin(),
                  [](double a, double b) { return a == b || (a != a && b != b); }))
    throwf(
        "the run of {} cannot be replayed: its first loss is {} and was {}; data, model and options must be those of "
        "the folder",
        recipe.name, again.empty() ? 0 : again[0], run.curve.loss.empty() ? 0 : run.curve.loss[0]);
  Explanation e;
  e.shows = trials.begin(kTrials);
  e.failure = trials.failure();
  e.budget = trials.budget();
  if (!e.shows) return e;
  Search search(recipe, trials);
  const Units units = fitting(units_of(recipe, run), recipe, trials);
  // One that does it alone, the smallest edit first, or all.
  Units found;
  for (const Unit& u : units)
    if (found.empty() && u.edit && search.averts(search.change_of({u}))) found = {u};
  if (found.empty() && search.averts(search.change_of(units))) found = search.minimal(units);
  if (!found.empty()) {
    e.change = search.change_of(found);
    e.minimal = !search.ended();
    search.narrow(e.change, e.failure.steps);
    e.undone = search.undone(e.change);
    e.averts = true;
    e.losses = trials.losses(e.change, e.failure.steps);
  }
  e.tried = search.tried();
  e.spent = trials.spent();
  return e;
}

std::string to_string(const Explanation& e) {
  constexpr std::string_view kMeasures[] = {"the last losses are finite", "steps are applied", "the training loss",
                                            "the test loss"};
  std::string text =
      fmt::format("measured: {}, after {} steps: {:.6g}, in fp32 {:.6g}\n", kMeasures[static_cast<int>(e.failure.kind)],
                  e.failure.steps, e.failure.run, e.failure.fp32);
  if (!e.shows) return text + "The failure does not show in these; nothing was tried.\n";
  if (!e.averts) {
    text += e.spent + e.failure.steps > e.budget ? "The budget ended before a set was found that averts the failure.\n"
                                                 : "Nothing that can be made exact averts the failure.\n";
  } else {
    text += fmt::format("The failure does not come ({:.0f}% undone) if this is exact, and all else as it was:\n",
                        100 * e.undone);
    for (const inspect::Exact& exact : e.change.exact) text += "  " + inspect::to_string(exact) + "\n";
    if (!e.change.edit.empty()) text += "  the recipe edited by " + e.change.edit + "\n";
    text += e.minimal ? "Without any one of these it comes.\n"
                      : "The budget ended before smaller sets were tried; --explain-steps gives more.\n";
  }
  return text + fmt::format("{} trials, {} steps of {}\n", e.tried, e.spent, e.budget);
}

std::string to_json(const Explanation& e, const amp::Recipe& recipe, std::uint64_t seed) {
  Json exact = Json::array();
  for (const inspect::Exact& x : e.change.exact)
    exact.push_back({{"part", inspect::to_string(x.part)},
                     {"site", x.site},
                     {"operand", x.operand},
                     {"first", x.first},
                     {"last", std::min(x.last, e.failure.steps - 1)}});
  Json losses = Json::array();
  for (const double loss : e.losses) losses.push_back(loss);  // null: not finite
  return Json{{"recipe", Json::parse(amp::to_json(recipe))},
              {"seed", seed},
              {"edit", e.change.edit.empty() ? Json::object() : Json::parse(e.change.edit)},
              {"exact", exact},
              {"averts", e.averts},
              {"minimal", e.minimal},
              {"undone", e.undone},
              {"losses", losses}}
             .dump(1) +
         "\n";
}

Replayable replayable_from_json(const std::string& text, const std::string& file) try {
  const Json j = Json::parse(bounded_json(text));
  Replayable r;
  if (!j.at("edit").empty()) r.change.edit = j.at("edit").dump();
  for (const Json& x : j.at("exact"))
    r.change.exact.push_back({.part = inspect::exact_part(x.at("part").get<std::string>()),
                              .site = x.at("site"),
                              .operand = x.at("operand"),
                              .first = x.at("first"),
                              .last = x.at("last")});
  for (const Json& loss : j.at("losses"))
    r.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
  return r;
} catch (const nlohmann::json::exception& e) { throwf("{}: is no file of gradual-lab explain: {}", file, e.what()); }

}  // namespace gradual::lab
