#include "cure_trials.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "run.h"
#include "verdict.h"

namespace gradual::lab {
namespace {

constexpr std::size_t kMostTried = 3;  // findings of a run

// The cures of one run.
struct CureTrials {
  const MakeModel& make_model;
  const LabData& data;
  const amp::Recipe& recipe;
  const Options& options;
  const std::vector<Result>& results;
  const std::vector<Result>& references;
  const Result& run;
  const Result* base;  // fp32's run

  // True if the verdict on the edited recipe leaves nothing to explain: the same test as any recipe's, of accuracy and
  // loss. A finding keeps the best of its cures.
  bool cures(Finding& f, const Finding::Cure& c) const {
    const amp::Recipe cured = inspect::edited(recipe, c.edit);
    const auto seed = static_cast<std::uint64_t>(run.seed);
    std::vector<Result> with = results;
    try {
      Run trained(make_model, data, cured, seed, options);
      if (!trained.train("", {.recipe = cured, .seed = seed})) return false;
      with.push_back(trained.result());
    } catch (const Error&) { return false; }  // the edited recipe does not fit the model
    judge(with, references, judging_of(options));
    const Result& got = with.back();
    const bool well = got.status == Status::ok;
    const double before = f.tried ? (got.metric.is_accuracy() ? f.tried->accuracy : f.tried->metric) : 0;
    if (!f.tried || (well && !(got.metric.gain(metric_of(got) - before) <= 0))) {
      f.cure = c.edit;
      f.remedy = c.remedy;
      f.tried = Finding::Tried{got.test_accuracy, got.test_loss, got.verdict, metric_of(got)};
    }
    return well && base && !fails(got);
  }

  // By one of its cures. False if options.stop ends it.
  bool cures_one_of(Finding& f) const {
    for (const Finding::Cure& c : f.cures) {
      if (options.stop && options.stop()) return false;
      if (cures(f, c)) return true;
    }
    return false;
  }
};

}  // namespace

void try_cures(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
               const Options& options, std::vector<Result>& results, const std::vector<Result>& references) {
  Options quiet = options;
  quiet.trace.clear();
  quiet.profile.clear();
  quiet.save.clear();
  quiet.progress = {};
  quiet.note = {};
  for (const amp::Recipe& recipe : recipes) {
    const auto run = std::ranges::find(results, recipe.name, &Result::recipe);
    if (run == results.end()) continue;
    const Result* base = baseline(results, references, *run);
    const CureTrials trials{make_model, data, recipe, quiet, results, references, *run, base};
    for (std::size_t i = 0; i < run->findings.size() && i < kMostTried; ++i) {
      if (!trials.cures_one_of(run->findings[i])) continue;
      const auto cured = run->findings.begin() + static_cast<std::ptrdiff_t>(i);
      std::rotate(run->findings.begin(), cured, cured + 1);
      break;
    }
  }
}

}  // namespace gradual::lab
