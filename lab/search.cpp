#include "search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../core/ops/ops.h"
#include "../core/support/generator.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "objective.h"
#include "run.h"
#include "sequential.h"
#include "statistics.h"
#include "verdict.h"

namespace gradual::lab {
namespace {

using inspect::Assignment;

struct Stopped {};

constexpr double kCostOfFp32 = 2;     // of bf16's
constexpr std::size_t kBudgets = 24;  // of the knapsack, in a geometric series
constexpr double kEqualCost = 0.02;   // an assignment costs as much as another one if the difference is smaller
constexpr int kMostDraws = 20000;     // of random assignments

// How much better the runs are than fp32's: in points of a share, else in percent of fp32's value.
double points_of(const Pairs& pairs) {
  const MetricInfo& metric = pairs[0].second->metric;
  const double gain = metric.gain(metric_difference(pairs).mean);
  if (metric.is_share()) return 100 * gain;
  std::vector<double> values;
  for (const auto& [run, base] : pairs) values.push_back(std::abs(metric_of(*base)));
  return 100 * gain / spread(values).mean;
}

// Whether all runs of a trial ended well, and how it compares with fp32 on the same seeds.
class TrialJudge {
 public:
  explicit TrialJudge(const SearchOptions& options) : options_(options) {}

  // Sets the trial's verdict, whether it passes and is certain to. runs: those of this trial; base: those of fp32, with
  // all seeds. looks: how often the trial is judged, which share the error of 5%. True if the trial is far from
  // passing, so that more seeds would not help.
  bool judge_trial(Trial& t, const std::vector<Result>& runs, const std::vector<Result>& base, int looks) const {
    compare(t, runs, base);
    const bool well = std::ranges::all_of(runs, [](const Result& r) { return r.status == Status::ok; });
    if (t.assignment.empty()) {
      t.passes = well;
      t.is_certain = well;
      return false;
    }
    const double limit = options_.noise * t.loss_noise;
    const bool any_loss = allows_any_loss(base);
    const double loss_margin = any_loss ? kAnyLoss : 100 * limit / std::abs(t.fp32_loss);
    t.verdict = verdict(runs, base, loss_margin, error_of_a_look(looks));
    const bool near = t.points >= -options_.within - 1e-9 && (any_loss || t.loss_change <= limit);
    const VerdictKind kind = t.verdict.kind;
    const bool worse = kind == VerdictKind::worse || kind == VerdictKind::worse_loss;
    const bool equal = kind == VerdictKind::matches || kind == VerdictKind::better;
    t.is_certain = well && equal;
    t.passes = well && (equal || (near && !worse));
    const bool seeds_may_tell = kind == VerdictKind::undecided && !t.verdict.looks_worse;
    const bool may_pass = seeds_may_tell && (any_loss || t.loss_change <= 2 * limit);
    return !t.passes && !may_pass;
  }

 private:
  static constexpr double kAnyLoss = std::numeric_limits<double>::infinity();

  bool allows_any_loss(const std::vector<Result>& base) const { return options_.noise == 0 || base.size() < 2; }

  static void compare(Trial& t, const std::vector<Result>& runs, const std::vector<Result>& base) {
    t.accuracy.push_back(metric_of(runs.back()));
    t.loss.push_back(runs.back().test_loss);
    Pairs pairs;
    for (std::size_t i = 0; i < runs.size(); ++i) pairs.emplace_back(&runs[i], &base[i]);
    t.points = points_of(pairs);
    t.loss_change = loss_difference(pairs).mean;
    t.fp32_loss = spread(t.loss).mean - t.loss_change;
    t.loss_noise = base.size() < 2 ? 0 : by_recipe(base)[0].of(&Result::test_loss).deviation;
  }

  // loss_margin is in percent.
  Verdict verdict(std::vector<Result> runs, const std::vector<Result>& base, double loss_margin, double error) const {
    runs.insert(runs.end(), base.begin(), base.end());
    const double within = options_.within;
    judge(runs, {}, {.margin = within, .loss_margin = loss_margin, .metric_margin = within, .error = error});
    return runs.front().verdict;
  }

  const SearchOptions& options_;
};

// The trainings of a search, each of which counts.
class Trials {
 public:
  Trials(const MakeModel& make_model, const LabData& data, const SearchOptions& options, Search& s)
      : make_model_(make_model), data_(data), options_(options), run_(options.run), judge_(options), s_(s) {
    run_.sample_every = 1 << 30;  // counts nothing
    run_.progress = {};
    run_.trace.clear();
    run_.profile.clear();
  }

  // Trains an assignment on the seeds of the search, unless that was done. It fails untrained if a failed one is at
  // least as expensive in every layer, or if too few trainings are left, which leaves the search incomplete.
  bool passes_trial(const std::string& why, const Assignment& a) {
    for (const Trial& t : s_.trials) {
      if (t.assignment == a) return t.passes;
      if (!t.assignment.empty() && !t.passes && std::ranges::equal(t.assignment, a, std::greater_equal())) return false;
    }
    if (s_.trainings + run_.seeds + 2 * options_.unseen > options_.trainings) {
      s_.complete = false;
      return false;
    }
    return measure(why, a, 0, run_.seeds).passes;
  }

  // Trains an assignment, fp32 if it is empty, with `seeds` seeds from `first` on.
  const Trial& measure(const std::string& why, const Assignment& a, std::uint64_t first, int seeds) {
    const amp::Recipe recipe = a.empty() ? amp::recipe("fp32") : s_.recipe(a);
    Trial t{.why = why, .assignment = a, .cost = a.empty() ? kCostOfFp32 : s_.cost(a), .first_seed = first};
    std::vector<Result> runs;
    std::vector<Result>& base = fp32_[first];
    const bool searching = first == 0 && !a.empty();  // else the run is fp32's, or proves or compares
    const int looks = searching ? seeds : 1;
    for (int i = 0; i < seeds; ++i) {
      const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
      Run run(make_model_, data_, recipe, seed, run_);
      if (!run.train("", {.recipe = recipe, .seed = seed})) throw Stopped{};
      if (s_.proven) ++s_.compared;
      else ++s_.trainings;
      runs.push_back(run.result());
      if (a.empty()) base.push_back(runs.back());
      if (judge_.judge_trial(t, runs, base, looks) && searching)
        break;  // a proof has all seeds, a trial may do without
    }
    if (searching && t.passes && (!s_.found || t.cost < s_.cost(*s_.found))) s_.found = a;
    s_.trials.push_back(std::move(t));
    if (options_.trial) options_.trial(s_);
    return s_.trials.back();
  }

 private:
  const MakeModel& make_model_;
  const LabData& data_;
  const SearchOptions& options_;
  Options run_;
  const TrialJudge judge_;
  Search& s_;
  std::map<std::uint64_t, std::vector<Result>> fp32_;  // by first seed
};

Assignment uniform(const Search& s, std::size_t format) { return Assignment(s.sites.size(), format); }

Trial& trial_of(Search& s, const Assignment& a) { return *std::ranges::find(s.trials, a, &Trial::assignment); }

// The sites that have a format of less cost, by saved cost per added harm.
std::vector<std::size_t> by_gain(const Search& s) {
  std::vector<std::size_t> sites;
  const auto gain = [&](std::size_t i) {
    const inspect::FormatSite& site = s.sites[i];
    const std::size_t f = (*s.found)[i];
    return (site.cost[f] - site.cost[f - 1]) / std::max(1e-12, site.harm[f - 1] - site.harm[f]);
  };
  for (std::size_t i = 0; i < s.sites.size(); ++i)
    if (const std::size_t f = (*s.found)[i]; f > 0 && s.sites[i].cost[f - 1] < s.sites[i].cost[f]) sites.push_back(i);
  std::ranges::stable_sort(sites, std::greater(), gain);
  return sites;
}

double distance_in_cost(const Search& s, const Assignment& a) { return std::abs(s.cost(a) - s.cost(*s.found)); }

// First and last layer, and the inside of attention, in one format, the others in a cheaper one: the choice nearest in
// cost to the found one.
Assignment rule_of_thumb(const Search& s) {
  const Assignment none = uniform(s, 0);
  Assignment best = none;
  const auto layers = std::ranges::count_if(s.sites, [](const inspect::FormatSite& site) { return !site.attention; });
  for (std::size_t high = 1; high < s.formats.size(); ++high)
    for (std::size_t low = 0; low < high; ++low) {
      Assignment a = uniform(s, low);
      a.front() = high;
      std::fill(a.begin() + layers - 1, a.end(), high);
      if (best == none || distance_in_cost(s, a) < distance_in_cost(s, best)) best = std::move(a);
    }
  return best;
}

// How many of the formats, from the cheapest on, a layer may have for the cost of the assignment.
std::size_t affordable_formats(const Search& s, Assignment a, std::size_t layer, double most) {
  std::size_t count = a[layer];
  while (count < s.formats.size()) {
    a[layer] = count;
    if (s.cost(a) > most) break;
    ++count;
  }
  return count;
}

// The layers draw their formats in random order, each one of those that leave enough of the found assignment's cost for
// the cheapest format in the layers after it.
Assignment random_assignment(const Search& s, Generator& generator) {
  Assignment a = uniform(s, 0);
  const double most = (1 + kEqualCost) * s.cost(*s.found);
  for (const std::int64_t i : randperm(std::ssize(s.sites), generator).to_vector<std::int64_t>()) {
    const auto layer = static_cast<std::size_t>(i);
    const auto count = static_cast<double>(affordable_formats(s, a, layer, most));
    a[layer] = static_cast<std::size_t>(rand({}, {}, generator).item() * count);
  }
  return a;
}

// At most `most` different ones whose cost equals the found one's.
std::vector<Assignment> random_ones(const Search& s, int most) {
  Generator generator(0);
  std::vector<Assignment> found;
  std::set<Assignment> seen{*s.found, rule_of_thumb(s)};
  for (int draws = 0; draws < kMostDraws && std::ssize(found) < most; ++draws) {
    const Assignment a = random_assignment(s, generator);
    if (distance_in_cost(s, a) <= kEqualCost * s.cost(*s.found) && seen.insert(a).second) found.push_back(a);
  }
  return found;
}

// The way of a search: from the knapsack's front, by cheaper formats and exchanges, to the proof.
class Searcher {
 public:
  Searcher(Trials& trials, const SearchOptions& options, Search& s) : trials_(trials), options_(options), s_(s) {}

  void run() {
    const int seeds = options_.run.seeds;
    trials_.measure("fp32", {}, 0, seeds);
    from_the_front();
    s_.complete = s_.found.has_value();
    for (auto first = static_cast<std::uint64_t>(seeds); s_.found && !s_.proven; first += options_.unseen) {
      while (lower() || exchange()) {}
      if (options_.unseen == 0 || s_.trainings + 2 * options_.unseen > options_.trainings) break;
      prove(first);
    }
    if (s_.proven) compare();
  }

 private:
  // Finds the cheapest assignment of the knapsack that passes, by bisection.
  void from_the_front() {
    double least = 0;
    double most = 0;
    for (const inspect::FormatSite& s : s_.sites) {
      least += std::ranges::min(s.cost);
      most += std::ranges::max(s.cost);
    }
    std::vector<double> budgets(kBudgets, least);
    const double factor = std::pow(most / least, 1.0 / (kBudgets - 1));
    for (std::size_t i = 1; i < budgets.size(); ++i) budgets[i] = budgets[i - 1] * factor;
    std::vector<Assignment> front = inspect::knapsack(s_.sites, budgets);
    front.push_back(uniform(s_, s_.formats.size() - 1));
    if (trials_.passes_trial("knapsack", front[0])) return;
    std::size_t fails = 0;
    std::size_t good = front.size();  // beyond the last one, which may fail too
    while (fails + 1 < good) {
      const std::size_t middle = (fails + good) / 2;
      if (trials_.passes_trial("knapsack", front[middle])) good = middle;
      else fails = middle;
    }
  }

  // Moves all layers, then halves of them, finally single ones to the next cheaper format. Takes the first that passes.
  bool lower() {
    const std::vector<std::size_t> sites = by_gain(s_);
    std::size_t size = sites.size();
    for (; size > 1; size = (size + 1) / 2)
      if (lower_some(sites, size)) return true;
    return size == 1 && lower_some(sites, 1);
  }

  // The same for groups of `size` sites, one group after the other.
  bool lower_some(const std::vector<std::size_t>& sites, std::size_t size) {
    for (std::size_t at = 0; at < sites.size(); at += size) {
      Assignment a = *s_.found;
      const std::size_t count = std::min(size, sites.size() - at);
      for (std::size_t i = at; i < at + count; ++i) --a[sites[i]];
      if (trials_.passes_trial(fmt::format("lower {}", count), a)) return true;
    }
    return false;
  }

  // Tries another assignment that costs no more and promises less harm. Takes it if its loss is lower.
  bool exchange() {
    const Assignment before = *s_.found;
    const Assignment a = inspect::knapsack(s_.sites, {inspect::cost_of(s_.sites, before)})[0];
    if (a == before || s_.cost(a) > s_.cost(before) || !trials_.passes_trial("exchange", a)) return false;
    if (trial_of(s_, a).loss_change < trial_of(s_, before).loss_change) s_.found = a;
    return *s_.found != before;
  }

  // Proves the found assignment with unused seeds. If it fails, it counts as failed, and the next cheapest takes its
  // place.
  void prove(std::uint64_t first) {
    s_.proof_seed = first;
    trials_.measure("fp32", {}, first, options_.unseen);
    s_.proven = trials_.measure("proof", *s_.found, first, options_.unseen).passes;
    if (s_.proven) return;
    trial_of(s_, *s_.found).passes = false;
    s_.found.reset();
    for (const Trial& t : s_.trials)
      if (t.passes && !t.assignment.empty() && (!s_.found || s_.cost(t.assignment) < s_.cost(*s_.found)))
        s_.found = t.assignment;
  }

  // Measures the baselines with the seeds of the proof.
  void compare() {
    std::vector<std::pair<std::string, Assignment>> others = {{"first and last", rule_of_thumb(s_)}};
    if (const auto bf16 = std::ranges::find(s_.formats, "e8m7"); bf16 != s_.formats.end())
      others.insert(others.begin(), {"uniform bf16", uniform(s_, static_cast<std::size_t>(bf16 - s_.formats.begin()))});
    for (Assignment& a : random_ones(s_, options_.random)) others.emplace_back("random", std::move(a));
    for (const auto& [why, a] : others)
      if (a != *s_.found) trials_.measure(why, a, s_.proof_seed, options_.unseen);
  }

  Trials& trials_;
  const SearchOptions& options_;
  Search& s_;
};

std::vector<amp::Recipe> recipes_of(const std::vector<std::string>& formats) {
  std::vector<amp::Recipe> recipes;
  for (const std::string& name : formats) {
    amp::Recipe r = amp::recipe(name);
    if (!r.quantization && !amp::is_plain_f32(r))
      throwf("search: '{}' is not a format of products; allowed are fp32 and quantised recipes, as e8m7", name);
    if (std::ranges::find(recipes, r.name, &amp::Recipe::name) != recipes.end())
      throw_error("search: the format " + r.name + " is given twice");
    recipes.push_back(std::move(r));
  }
  if (recipes.size() < 2) throw_error("search: at least two formats are needed");
  return recipes;
}

void check_options(const SearchOptions& o) {
  if (!(o.within >= 0 && o.noise >= 0 && o.unseen >= 0 && o.random >= 0))
    throwf("search: within is {}, noise {}, unseen {} and random {}; they must be at least 0", o.within, o.noise,
           o.unseen, o.random);
  if (const int least = 2 * o.run.seeds + 2 * o.unseen; o.trainings < least)
    throwf("search: {} trainings are too few; fp32, one trial and the proof take {}", o.trainings, least);
}

}  // namespace

amp::Recipe Search::recipe(const Assignment& a) const {
  amp::Recipe r{.name = "searched", .description = to_string(a), .quantization = amp::Quantization()};
  amp::AttentionPrecision inside{.all_modules = true};
  bool rounds_attention = false;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    if (!sites[i].attention) {
      r.quantization->modules.emplace_back(sites[i].layer, formats[a[i]]);
      continue;
    }
    std::optional<Quantizer>& quantizer = inside.*sites[i].attention->quantizer;
    quantizer = inspect::attention_quantizer(*sites[i].attention, amp::recipe(formats[a[i]]));
    rounds_attention = rounds_attention || quantizer;
  }
  if (rounds_attention) r.quantization->attention = inside;
  return r;
}

std::string Search::to_string(const Assignment& a) const {
  if (a.empty()) return "fp32";
  std::string text;
  for (std::size_t f = 0; f < formats.size(); ++f) {
    std::vector<std::string> layers;
    for (std::size_t i = 0; i < sites.size(); ++i)
      if (a[i] == f) layers.push_back(sites[i].layer);
    if (layers.empty()) continue;
    if (layers.size() == sites.size()) return formats[f] + ": all";
    text += (text.empty() ? "" : "; ") + formats[f] + ": " + join(layers);
  }
  return text;
}

Search search(const MakeModel& make_model, const LabData& data, const SearchOptions& options) {
  check_options(options);
  std::vector<amp::Recipe> formats = recipes_of(options.formats);
  check(make_model, formats, "", options.run);
  Search s;
  s.metric = objective_of(data, options.run.loss, options.run.metric).info;
  {
    Study study(make_model, data, amp::recipe("fp32"), options.step);
    s.sites = inspect::format_sites(
        study.model(), [&] { return study.loss(); }, formats, options.cost, options.attention);
  }
  for (const amp::Recipe& f : formats) s.formats.push_back(f.name);
  for (const auto& site : s.sites) s.bf16_cost += inspect::cost_of(site, amp::recipe("e8m7"), options.cost);
  try {
    Trials trials(make_model, data, options, s);
    Searcher(trials, options, s).run();
  } catch (const Stopped&) {
    s.stopped = true;
    s.complete = false;
  }
  return s;
}

}  // namespace gradual::lab
