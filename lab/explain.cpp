#include "explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "../core/files/json_text.h"
#include "../core/support/throwf.h"
#include "../inspect/cures.h"
#include "../inspect/numbers.h"
#include "minimal_set.h"
#include "recipe_choices.h"

namespace gradual::lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAverts = 0.8;            // of a loss's failure
constexpr std::int64_t kTrials = 16;       // for which the budget should suffice
constexpr std::int64_t kCheckedSteps = 3;  // of the replay without a change

// Trials of sets of choices.
class Search {
 public:
  Search(const amp::Recipe& recipe, std::vector<RecipeChoice> choices, Trials& trials)
      : recipe_(recipe), choices_(std::move(choices)), trials_(trials) {}

  // One that does it alone, or a minimal part of all. None if all together do not avert the failure.
  std::optional<MinimalSet> found() {
    const std::int64_t last = trials_.failure().steps - 1;
    const SetTrials of_sets{.answer = [this](const MemberSet& set) { return answer(set); },
                            .affords = [this](std::size_t count) { return affords(count); }};
    MemberSet first{.last = last};
    MemberSet all{.last = last};
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const MemberSet one{.members = {i}, .last = last};
      if (choices_[i].goes_first && answer(one) == SetAnswer::averts) return MinimalSet{.set = one, .is_minimal = true};
      if (!choices_[i].goes_last) first.members.push_back(i);
      all.members.push_back(i);
    }
    for (const MemberSet& set : {first, all})
      if (!set.members.empty() && answer(set) == SetAnswer::averts) return minimal_set(set, of_sets, true);
    return {};
  }

  // What is not exact in the whole trial is so in the set's steps.
  Change change_of(const MemberSet& set) const {
    Change change;
    amp::Recipe edited = recipe_;
    const bool whole = set.first == 0 && set.last == trials_.failure().steps - 1;
    for (const std::size_t i : set.members) {
      const RecipeChoice& choice = choices_[i];
      if (choice.edit) edited = choice.edit(edited);
      if (!choice.exact) continue;
      change.exact.push_back(*choice.exact);
      if (whole) continue;
      change.exact.back().first = set.first;
      change.exact.back().last = set.last;
    }
    if (amp::to_json(edited) != amp::to_json(recipe_)) change.edit = inspect::edit(recipe_, edited);
    return change;
  }

  std::int64_t tried() const { return tried_; }

 private:
  bool affords(std::size_t count) const {
    return trials_.spent() + static_cast<std::int64_t>(count) * trials_.failure().steps <= trials_.budget();
  }

  SetAnswer answer(const MemberSet& set) {
    const std::int64_t before = trials_.spent();
    const std::optional<double> undone = trials_.undone(change_of(set));
    tried_ += trials_.spent() > before;
    if (!undone) return trials_.stopped() || !affords(1) ? SetAnswer::not_tried : SetAnswer::does_not_run;
    const double least = trials_.failure().kind == FailureKind::divergence ? 1 : kAverts;
    return *undone >= least ? SetAnswer::averts : SetAnswer::fails;
  }

  const amp::Recipe& recipe_;
  std::vector<RecipeChoice> choices_;
  Trials& trials_;
  std::int64_t tried_ = 0;
};

// Whether an edit changes the recipe, and a step runs with it: alone, or together with norms in f32.
bool fits(const RecipeChoice& choice, const amp::Recipe& recipe, Trials& trials) {
  const amp::Recipe alone = choice.edit(recipe);
  if (amp::to_json(alone) == amp::to_json(recipe)) return false;
  if (trials.runs(inspect::edit(recipe, alone))) return true;
  amp::Recipe with_norms = recipe;
  for (const RecipeChoice& norm : choices_of_norms(recipe)) with_norms = norm.edit(with_norms);
  const bool differs = amp::to_json(with_norms) != amp::to_json(recipe);
  return differs && trials.runs(inspect::edit(recipe, choice.edit(with_norms)));
}

std::vector<RecipeChoice> fitting(std::vector<RecipeChoice> choices, const amp::Recipe& recipe, Trials& trials) {
  std::erase_if(choices, [&](const RecipeChoice& choice) { return choice.edit && !fits(choice, recipe, trials); });
  return choices;
}

}  // namespace

Explanation explain_run(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, std::uint64_t seed,
                        const Options& options, const Result& run, const Result& fp32) {
  const std::int64_t all = std::max(run.steps, fp32.steps);
  Trials trials(make_model, data, recipe, seed, options, run, fp32,
                options.explain_steps < 0 ? all : options.explain_steps);
  const auto first = static_cast<std::ptrdiff_t>(std::min<std::size_t>(run.curve.loss.size(), kCheckedSteps));
  const std::vector<double> again = trials.losses({}, first);
  if (!std::equal(again.begin(), again.end(), run.curve.loss.begin(), inspect::same_number))
    throwf(
        "the run of {} cannot be replayed: its first loss is {} and was {}; data, model and options must be those of "
        "the folder",
        recipe.name, again.empty() ? 0 : again[0], run.curve.loss.empty() ? 0 : run.curve.loss[0]);
  Explanation e;
  e.shows = trials.begin(kTrials);
  e.failure = trials.failure();
  e.budget = trials.budget();
  if (!e.shows) return e;
  const auto observed = trials.first_step();
  if (!observed) return e;
  Search search(recipe, fitting(choices_of(recipe, run, *observed), recipe, trials), trials);
  if (const std::optional<MinimalSet> found = search.found()) {
    e.change = search.change_of(found->set);
    e.minimal = found->is_minimal;
    e.must_run = found->must_run;
    e.undone = trials.undone(e.change).value_or(0);
    e.averts = true;
    e.losses = trials.losses(e.change, e.failure.steps);
  }
  e.tried = search.tried();
  e.spent = trials.spent();
  return e;
}

// What the trials have shown of the set's members.
static std::string_view minimality(const Explanation& e) {
  if (!e.minimal)
    return "The budget ended before this was shown to be minimal: members may be superfluous; --explain-steps gives "
           "more.\n";
  if (e.must_run) return "Without any one of these it comes, or no step runs.\n";
  return "Without any one of these it comes.\n";
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
    text += minimality(e);
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
  Replayable r{.recipe = j.at("recipe").dump(), .seed = j.at("seed").get<std::uint64_t>()};
  static_cast<void>(j.at("recipe").at("name").get<std::string>());
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

void check_applies(const Replayable& replayable, const std::string& file, const amp::Recipe& recipe,
                   std::uint64_t seed) {
  const Json of_file = Json::parse(replayable.recipe);
  const bool same_recipe = of_file == Json::parse(amp::to_json(recipe));
  if (same_recipe && replayable.seed == seed) return;
  const auto name = of_file.at("name").get<std::string>();
  throwf("explain: {} is of the recipe {}, seed {}, and cannot be applied to {}{}, seed {}", file, name,
         replayable.seed, !same_recipe && name == recipe.name ? "another recipe named " : "", recipe.name, seed);
}

}  // namespace gradual::lab
