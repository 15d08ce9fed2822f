// Results of runs that were never trained, with a known difference between a recipe and fp32.
#pragma once

#include <gradual/lab/result.h>
#include <gradual/lab/sequential.h>
#include <gradual/lab/verdict.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace gradual::test {

// A recipe whose true difference from fp32 is known.
struct Truth {
  double points = 0;         // of accuracy
  double loss_percent = 0;   // of the test loss
  double discordant = 0.03;  // share of the samples that one of the two gets right
  double spread = 0.5;       // deviation of the logarithm of the ratio of a sample's two losses
  double of_seeds = 0;       // variance that a training adds, as a multiple of that by its samples
  double of_sets = 0;        // the same of a test set that all seeds share, as a share of the samples' own
  int samples = 360;
  bool one_set = false;  // all seeds have the same test set
};

class Simulation {
 public:
  Simulation(const Truth& truth, std::uint64_t seed) : truth_(truth), random_(seed) { fixed_ = draws(truth.samples); }

  // Runs of fp32 and of "low" with one more seed.
  void add_seed(std::vector<lab::Result>& results) {
    const int seed = seeds_++;
    lab::Result base = run("fp32", seed);
    lab::Result low = run("low", seed);
    const double own = std::sqrt(truth_.of_seeds * truth_.discordant / truth_.samples) * normal();
    const double own_loss = std::sqrt(truth_.of_seeds / truth_.samples) * truth_.spread * 2 * normal();
    for (int i = 0; i < truth_.samples; ++i) add_sample(base, low, i, own, own_loss);
    finish(base);
    finish(low);
    results.push_back(std::move(base));
    results.push_back(std::move(low));
  }

 private:
  std::vector<double> draws(int count) {
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(normal());
    return values;
  }
  double normal() { return std::normal_distribution<double>()(random_); }
  double uniform() { return std::uniform_real_distribution<double>()(random_); }

  void add_sample(lab::Result& base, lab::Result& low, int i, double own, double own_loss) {
    const std::uint32_t name = static_cast<std::uint32_t>(i) + (truth_.one_set ? 0U : 100000U * seeds_);
    const double of_set = truth_.one_set ? fixed_[static_cast<std::size_t>(i)] : 0;
    const double shift = truth_.points / 100 + own + 0.5 * truth_.discordant * std::sqrt(truth_.of_sets) * of_set;
    const double draw = uniform();
    const double gains = std::clamp((truth_.discordant + shift) / 2, 0.0, 1.0);
    const double losses = std::clamp((truth_.discordant - shift) / 2, 0.0, 1.0);
    const bool differs = draw < gains + losses;
    const bool right = differs ? draw >= gains : uniform() < 0.97;
    add(base, name, right, 0);
    add(low, name, differs ? !right : right, 0);
    const double log_loss = -3 + 1.2 * normal();
    const double ratio = std::exp(truth_.spread * normal() - truth_.spread * truth_.spread / 2);
    base.samples.loss.back() = static_cast<float>(std::exp(log_loss));
    low.samples.loss.back() = static_cast<float>(std::exp(log_loss) * (ratio + truth_.loss_percent / 100 + own_loss));
  }
  static void add(lab::Result& r, std::uint32_t name, bool right, float loss) {
    r.samples.sample.push_back(name);
    r.samples.counted.push_back(1);
    r.samples.score.push_back(right ? 1.0F : 0.0F);
    r.samples.loss.push_back(loss);
  }
  static double mean(const std::vector<float>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
  static void finish(lab::Result& r) {
    r.test_accuracy = mean(r.samples.score);
    r.test_loss = mean(r.samples.loss);
    r.test_samples = static_cast<std::int64_t>(r.samples.size());
  }
  static lab::Result run(const std::string& recipe, int seed) {
    lab::Result r{.recipe = recipe, .model = "m", .data = "d", .seed = seed, .epochs = 1, .steps = 2};
    r.train_loss = 0.1;
    r.status = lab::Status::ok;
    r.curve = {{0, 1}, {2.3, 0.1}, {1, 1}, {false, false}, {0, 0}};
    return r;
  }

  Truth truth_;
  std::mt19937_64 random_;
  std::vector<double> fixed_;
  std::uint32_t seeds_ = 0;
};

inline lab::VerdictKind verdict_on_low(std::vector<lab::Result> results, const lab::Judging& judging) {
  lab::judge(results, {}, judging);
  return std::ranges::find(results, "low", &lab::Result::recipe)->verdict.kind;
}

// The answer after `seeds` seeds, or with `until` above that the one of the sequential test, and the seeds it took.
struct Answer {
  lab::VerdictKind kind = lab::VerdictKind::undecided;
  int seeds = 0;
};
inline Answer answer(const Truth& truth, std::uint64_t number, int seeds, int until = 0) {
  Simulation simulation(truth, number);
  const std::vector<int> looks = lab::looks(seeds, until);
  const lab::Judging judging{.error = lab::error_of_a_look(static_cast<int>(looks.size()))};
  std::vector<lab::Result> results;
  Answer a;
  for (const int look : looks) {
    while (a.seeds < look) {
      simulation.add_seed(results);
      ++a.seeds;
    }
    a.kind = verdict_on_low(results, judging);
    if (a.kind != lab::VerdictKind::undecided) break;
  }
  return a;
}

struct AnswerCounts {
  int comparisons = 0;
  int matches = 0;
  int worse = 0;
  int better = 0;
  int undecided = 0;
  double seeds = 0;  // on average
};
inline AnswerCounts rates(const Truth& truth, int comparisons, int seeds, int until = 0) {
  AnswerCounts r{.comparisons = comparisons};
  for (int i = 0; i < comparisons; ++i) {
    const Answer a = answer(truth, static_cast<std::uint64_t>(i) + 1, seeds, until);
    r.seeds += static_cast<double>(a.seeds) / comparisons;
    r.matches += a.kind == lab::VerdictKind::matches ? 1 : 0;
    r.worse += a.kind == lab::VerdictKind::worse || a.kind == lab::VerdictKind::worse_loss ? 1 : 0;
    r.better += a.kind == lab::VerdictKind::better ? 1 : 0;
    r.undecided += a.kind == lab::VerdictKind::undecided ? 1 : 0;
  }
  return r;
}

}  // namespace gradual::test
