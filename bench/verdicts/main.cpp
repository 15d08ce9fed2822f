// How often verdicts are wrong: on simulated results with a known difference, and on repeated trainings of the digits.
//
//   gradual-verdict-rates [--simulated N] [--repeated N] [--model NAME] [--epochs N]
#include <fmt/format.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/verdict.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "../../tests/support/simulated_runs.h"

using namespace gradual;
using lab::VerdictKind;

namespace {

struct Arguments {
  int simulated = 200;
  int repeated = 10;
  int epochs = 4;
  std::string model = "cnn";
};

struct Case {
  const char* name;
  test::Truth truth;
  int seeds;
  int until;
};

const std::vector<Case> kCases = {
    {"3% of samples discordant", {}, 3, 0},
    {"the same, 1 seed", {}, 1, 0},
    {"the same, 5 seeds", {}, 5, 0},
    {"the same, 10 seeds", {}, 10, 0},
    {"0.5% discordant", {.discordant = 0.005, .spread = 0.05}, 3, 0},
    {"trainings add twice the samples' variance", {.of_seeds = 2}, 3, 0},
    {"trainings add 8 times the samples' variance", {.of_seeds = 8}, 3, 0},
    {"the same, 10 seeds", {.of_seeds = 8}, 10, 0},
    {"one test set of 1000 for all seeds", {.discordant = 0.05, .of_sets = 1, .samples = 1000, .one_set = true}, 3, 0},
    {"the same, trainings add twice the samples' variance",
     {.discordant = 0.05, .of_seeds = 2, .of_sets = 1, .samples = 1000, .one_set = true},
     5,
     0},
    {"3% discordant, until decided", {}, 3, 30},
    {"2% discordant, until decided", {.discordant = 0.02, .spread = 0.2, .of_seeds = 1}, 3, 30},
};

std::string percent(int count, int of) { return fmt::format("{:.1f}%", 100.0 * count / of); }

void simulate(int comparisons) {
  fmt::print(
      "| simulated | seeds | at no difference: worse | better | matches | at -0.5 points: matches | worse | "
      "at +10% loss: matches | worse | seeds used, none / -0.5 |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Case& c : kCases) {
    const test::AnswerCounts none = test::rates(c.truth, comparisons, c.seeds, c.until);
    test::Truth truth = c.truth;
    truth.points = -0.5;
    truth.discordant = std::max(truth.discordant, 0.01);
    const test::AnswerCounts margin = test::rates(truth, comparisons, c.seeds, c.until);
    truth = c.truth;
    truth.loss_percent = 10;
    const test::AnswerCounts loss = test::rates(truth, comparisons, c.seeds, c.until);
    const std::string seeds = c.until > 0 ? fmt::format("{} to {}", c.seeds, c.until) : fmt::format("{}", c.seeds);
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1f} / {:.1f} |\n", c.name, seeds,
               percent(none.worse, comparisons), percent(none.better, comparisons), percent(none.matches, comparisons),
               percent(margin.matches, comparisons), percent(margin.worse, comparisons),
               percent(loss.matches, comparisons), percent(loss.worse, comparisons), none.seeds, margin.seeds);
  }
}

// Splits of the digits that no other repetition has, one a seed.
lab::LabData digits(int repetition, std::uint64_t seeds) {
  const data::Dataset all = data::digits();
  return {"digits", [=](std::uint64_t seed) {
            return data::split(all, 1437, 1000 + 100 * static_cast<std::uint64_t>(repetition) + seed % seeds);
          }};
}

// With initial weights of its own: the random numbers before them are left out.
lab::MakeModel model_of(const Arguments& a, int repetition) {
  return [make = lab::model_for(a.model, digits(0, 1).load(0).train), repetition] {
    rand({repetition + 1});
    return make();
  };
}

std::vector<amp::Recipe> recipes(const std::vector<std::string>& names) {
  std::vector<amp::Recipe> all;
  for (const std::string& name : names) all.push_back(amp::recipe(name));
  return all;
}

const lab::Result& first_of(const std::vector<lab::Result>& results, const std::string& recipe) {
  return *std::ranges::find(results, recipe, &lab::Result::recipe);
}

void count(std::map<std::string, std::map<std::string, int>>& kinds, const std::string& row, const lab::Result& r) {
  ++kinds[row][std::string(to_string(r.verdict.kind))];
}

// fp32 against itself with other initial weights and another order of the data, on the same splits.
lab::Result against_itself(const Arguments& a, int repetition, int seeds) {
  const lab::Options options{.epochs = a.epochs, .seeds = 2 * seeds, .sample_every = 1 << 20};
  auto results = lab::compare(model_of(a, repetition), digits(repetition, static_cast<std::uint64_t>(seeds)),
                              recipes({"fp32"}), "", options);
  for (lab::Result& r : results) {
    if (r.seed < seeds) continue;
    r.recipe = "again";
    r.seed -= seeds;
  }
  lab::judge(results);
  return first_of(results, "again");
}

void repeat(const Arguments& a) {
  constexpr int kSeeds = 3;
  const std::vector<std::string> names = {"tf32", "amp-bf16", "mxfp6", "mxfp4", "mx4", "e4m3"};
  std::map<std::string, std::map<std::string, int>> kinds;
  std::map<std::string, std::vector<double>> points;
  for (int repetition = 0; repetition < a.repeated; ++repetition) {
    std::vector<std::string> all = names;
    all.insert(all.begin(), "fp32");
    const lab::Options options{.epochs = a.epochs, .seeds = kSeeds, .sample_every = 1 << 20};
    const auto results = lab::compare(model_of(a, repetition), digits(repetition, kSeeds), recipes(all), "", options);
    for (const std::string& name : names) {
      const lab::Result& r = first_of(results, name);
      count(kinds, name, r);
      if (r.difference) points[name].push_back(100 * r.difference->mean);
      fmt::print(stderr, "{} {}: {}\n", repetition, name, to_string(r.verdict));
    }
    for (const int half : {0, 1}) {
      const lab::Result same = against_itself(a, 2 * repetition + half, kSeeds);
      count(kinds, "fp32 again", same);
      points["fp32 again"].push_back(100 * same.difference->mean);
      fmt::print(stderr, "{} fp32 again: {}\n", repetition, to_string(same.verdict));
    }
  }
  fmt::print("\n| {} on the digits, {} epochs, 3 seeds | repetitions | points, mean | verdicts |\n|---|---|---|---|\n",
             a.model, a.epochs);
  for (const auto& [name, found] : kinds) {
    std::string text;
    int repetitions = 0;
    for (const auto& [kind, times] : found) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", times, kind);
      repetitions += times;
    }
    double mean = 0;
    for (const double p : points[name]) mean += p / static_cast<double>(points[name].size());
    fmt::print("| {} | {} | {:+.2f} | {} |\n", name, repetitions, mean, text);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    if (option == "--simulated") a.simulated = std::atoi(argv[i + 1]);
    if (option == "--repeated") a.repeated = std::atoi(argv[i + 1]);
    if (option == "--epochs") a.epochs = std::atoi(argv[i + 1]);
    if (option == "--model") a.model = argv[i + 1];
  }
  if (a.simulated > 0) simulate(a.simulated);
  if (a.repeated > 0) repeat(a);
  return 0;
}
