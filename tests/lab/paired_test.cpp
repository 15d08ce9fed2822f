// Student's t, the variance over seeds and samples, the answers, and how often they are wrong.
#include <doctest/doctest.h>
#include <gradual/lab/decision.h>
#include <gradual/lab/paired.h>
#include <gradual/lab/sequential.h>
#include <gradual/lab/statistics.h>
#include <gradual/lab/student_t.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/simulated_runs.h"

using namespace gradual;
using namespace gradual::test;
using lab::VerdictKind;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// An estimate of that mean and standard error, with many degrees of freedom.
lab::Difference measured(double mean, double error, int seeds = 3) {
  lab::Estimate e{.seeds = seeds, .mean = mean, .of_seeds = error * error * seeds, .degrees_of_seeds = 1e6};
  e.of_samples = e.of_seeds;
  return {.mean = mean, .estimate = e};
}

// fp32's loss is 1, so that a loss difference of 0.01 is 1%.
VerdictKind kind(double points, double error, double loss, double loss_error, int seeds = 3) {
  return decision(measured(points / 100, error / 100, seeds), measured(loss / 100, loss_error / 100, seeds), 1, {})
      .kind;
}

}  // namespace

TEST_CASE("Student's t has the quantiles of its tables, and the normal ones in the limit") {
  CHECK(lab::student_quantile(0.025, 1) == doctest::Approx(12.7062047364).epsilon(1e-9));
  CHECK(lab::student_quantile(0.025, 2) == doctest::Approx(4.30265272991).epsilon(1e-9));
  CHECK(lab::student_quantile(0.025, 4) == doctest::Approx(2.7764451052).epsilon(1e-9));
  CHECK(lab::student_quantile(0.005, 10) == doctest::Approx(3.16927267261).epsilon(1e-9));
  CHECK(lab::student_quantile(0.025, 1e12) == doctest::Approx(1.95996398454).epsilon(1e-7));
  CHECK(lab::student_tail(0, 3) == doctest::Approx(0.5));
  CHECK(lab::student_tail(-2, 2) == doctest::Approx(1 - lab::student_tail(2, 2)));
  CHECK(lab::student_tail(2, 2) == doctest::Approx(0.0917517095361).epsilon(1e-9));
  CHECK(lab::student_tail(std::numeric_limits<double>::infinity(), 2) == 0);
  CHECK(std::isnan(lab::student_tail(kNaN, 2)));
}

TEST_CASE("the variance of one seed is that of its paired samples, with half a discordant pair on either side") {
  lab::PairedSeed seed{.sample = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, .mean = -0.1};
  seed.counted.assign(10, 1);
  seed.difference = {-1, 0, 0, 0, 0, -1, 1, 0, 0, 0};
  const lab::Estimate e = lab::estimate({seed}, true);
  // squares 3 - 10 * 0.1^2, and the added pair, over 10^2, times 10 / 9
  CHECK(e.of_samples == doctest::Approx((2.9 + 1) / 100 * 10 / 9));
  CHECK(e.of_seeds == doctest::Approx(2 * e.of_samples));
  CHECK(e.degrees(1) == 2);
  CHECK(lab::half_interval(e, 0.05, 1) == doctest::Approx(4.30265272991 * std::sqrt(2 * e.of_samples)));
  CHECK(lab::estimate({seed}, false).of_samples == doctest::Approx(2.9 / 100 * 10 / 9));
}

TEST_CASE("seeds count as drawn, and samples that they share do not become more") {
  // Two seeds on the same two samples, whose differences are the same: more seeds tell nothing new.
  lab::PairedSeed one{.sample = {1, 2}, .counted = {1, 1}, .difference = {0.4, 0.0}, .mean = 0.2};
  const lab::Estimate shared = lab::estimate({one, one}, false);
  CHECK(shared.shared == doctest::Approx(2 * 0.1 * 0.1));
  lab::PairedSeed other = one;
  other.sample = {3, 4};
  const lab::Estimate apart = lab::estimate({one, other}, false);
  CHECK(apart.shared == 0);
  CHECK(apart.of_samples == doctest::Approx(2 * 0.1 * 0.1 * 2));
  CHECK(apart.of_seeds == doctest::Approx(2 * 2 * apart.of_samples / 3));  // the two differences are equal
  CHECK(shared.variance(1000) > 0.9 * shared.shared);
  CHECK(apart.variance(1000) < 0.01 * apart.variance(2));
  CHECK(shared.degrees(2) > apart.degrees(2));
}

TEST_CASE("a sample of many targets is one sample, weighted by its targets") {
  lab::PairedSeed seed{.sample = {1, 2}, .counted = {3, 1}, .difference = {3, 0}, .mean = 0.75};
  // deviations 3 - 3 * 0.75 and 0 - 0.75, over 4 targets
  CHECK(lab::estimate({seed}, false).of_samples == doctest::Approx(2 * 0.75 * 0.75 / 16 * 2));
}

TEST_CASE("an answer needs its whole interval within the margin, or on one side of 0") {
  CHECK(kind(0, 0.1, 0, 1) == VerdictKind::matches);
  CHECK(kind(-0.2, 0.1, 2, 1) == VerdictKind::matches);  // the difference is certain, and does not matter
  CHECK(kind(-0.2, 0.2, 0, 1) == VerdictKind::undecided);
  CHECK(kind(0, 0.1, 0, 6) == VerdictKind::undecided);
  CHECK(kind(-0.6, 0.2, 0, 1) == VerdictKind::worse);
  CHECK(kind(-0.6, 0.2, 0, 50) == VerdictKind::worse);
  CHECK(kind(0, 0.1, 40, 10) == VerdictKind::worse_loss);
  CHECK(kind(0, 5, 40, 10) == VerdictKind::worse_loss);
  CHECK(kind(11.4, 3.4, 0, 1) == VerdictKind::better);
  CHECK(kind(11.4, 3.4, 40, 10) == VerdictKind::worse_loss);
  CHECK(kind(0, 0.1, -40, 10) == VerdictKind::better);
  CHECK(kind(-0.2, 0.3, -40, 10) == VerdictKind::undecided);
}

TEST_CASE("one seed never matches, and is worse or better only by more than a margin") {
  CHECK(kind(0, 0.01, 0, 0.1, 1) == VerdictKind::undecided);
  CHECK(kind(-62.8, 5, 900, 50, 1) == VerdictKind::worse);
  for (const int seeds : {1, 2}) {
    CAPTURE(seeds);
    const bool one = seeds == 1;
    CHECK(kind(0, 5, 8, 2, seeds) == (one ? VerdictKind::undecided : VerdictKind::worse_loss));
    CHECK(kind(0, 5, 12, 1, seeds) == VerdictKind::worse_loss);
    CHECK(kind(0, 0.1, -8, 2, seeds) == (one ? VerdictKind::undecided : VerdictKind::better));
    CHECK(kind(0.45, 0.05, 0, 1, seeds) == (one ? VerdictKind::undecided : VerdictKind::better));
    CHECK(kind(-0.45, 0.05, 0, 1, seeds) == (one ? VerdictKind::undecided : VerdictKind::worse));
    CHECK(kind(-0.6, 0.05, 0, 1, seeds) == VerdictKind::worse);
  }
}

TEST_CASE("an undecided answer says how many seeds would do, and whether the models look worse") {
  const auto open = [](double points, double error, double shared) {
    lab::Difference d = measured(points / 100, error / 100);
    d.estimate.shared = shared * 1e-4;
    return decision(d, measured(0, 0.001), 1, {});
  };
  const lab::Outcome near = open(0, 0.5, 0);
  REQUIRE(near.kind == VerdictKind::undecided);
  // 3 seeds give 0.5: (1.96 + 0.84 * 1.96 / 1.96) * 0.5 * sqrt(3 / n) <= 0.5
  CHECK(near.needed == 24);
  CHECK(!near.looks_worse);
  CHECK(open(0, 0.5, 0.2).needed == -1);  // the samples alone give more than the margin
  CHECK(open(-0.9, 0.5, 0).needed > 3);
  CHECK(!open(-0.9, 0.5, 0).looks_worse);
  lab::Difference d = measured(-0.03, 0.02);
  d.estimate.of_samples = 3 * 0.01 * 0.01;
  CHECK(decision(d, measured(0, 0.001), 1, {}).looks_worse);
}

TEST_CASE("margins can be set, and a loss that does not matter decides nothing") {
  const lab::Difference small = measured(-0.02, 0.001);
  CHECK(decision(small, measured(0, 0.001), 1, {}).kind == VerdictKind::worse);
  CHECK(decision(small, measured(0, 0.001), 1, {.margin = 3}).kind == VerdictKind::matches);
  const lab::Difference none = measured(0, 0.0001);
  CHECK(decision(none, measured(0.3, 0.01), 1, {}).kind == VerdictKind::worse_loss);
  CHECK(decision(none, measured(0.3, 0.01), 1, {.loss_margin = 40}).kind == VerdictKind::matches);
  const double any = std::numeric_limits<double>::infinity();
  CHECK(decision(none, measured(0.3, 0.01), 1, {.loss_margin = any}).kind == VerdictKind::matches);
  CHECK(decision(none, measured(0.3, kNaN), 1, {.loss_margin = any}).kind == VerdictKind::matches);
}

TEST_CASE("Holm's method: the smallest p against the error over all, the next against one less") {
  const auto holds = lab::hold_together({0.03, 0.001, kNaN, 0.02, 0.2}, 0.05);
  CHECK(holds == std::vector<bool>{false, true, false, false, false});  // 0.02 > 0.05 / 4
  CHECK(lab::hold_together({0.02, 0.03}, 0.05) == std::vector<bool>{true, true});
  CHECK(lab::hold_together({}, 0.05).empty());
}

TEST_CASE("looks grow by half, up to the most") {
  CHECK(lab::looks(3, 0) == std::vector<int>{3});
  CHECK(lab::looks(3, 30) == std::vector<int>{3, 5, 8, 12, 18, 27, 30});
  CHECK(lab::looks(1, 4) == std::vector<int>{1, 2, 3, 4});
  CHECK(lab::error_of_a_look(4) == doctest::Approx(0.0125));
}

namespace {

constexpr int kComparisons = 200;
constexpr int kAllowed = kComparisons / 20;  // 5%

const std::vector<Truth> kKinds = {
    {},
    {.discordant = 0.01, .spread = 0.05},
    {.of_seeds = 2},
    {.discordant = 0.05, .of_sets = 1, .samples = 400, .one_set = true},
    {.discordant = 0.05, .of_seeds = 2, .of_sets = 1, .samples = 400, .one_set = true},
};

}  // namespace

TEST_CASE("at no difference at most 5% of comparisons are called worse") {
  for (const Truth& truth : kKinds)
    for (const int seeds : {1, 3}) {
      CAPTURE(truth.of_seeds);
      CAPTURE(truth.one_set);
      CAPTURE(seeds);
      CHECK(rates(truth, kComparisons, seeds).worse <= kAllowed);
    }
}

TEST_CASE("at the margin, of accuracy or of loss, at most 5% of comparisons are called a match") {
  for (Truth truth : kKinds) {
    CAPTURE(truth.of_seeds);
    CAPTURE(truth.one_set);
    truth.points = -0.5;
    CHECK(rates(truth, kComparisons, 3).matches <= kAllowed);
    truth.points = 0;
    truth.loss_percent = 10;
    CHECK(rates(truth, kComparisons, 3).matches <= kAllowed);
  }
}

TEST_CASE("looking again with more seeds keeps both error rates, and decides") {
  const Truth same{.discordant = 0.005, .spread = 0.1, .samples = 600};
  Truth at_margin = same;
  at_margin.points = -0.5;
  Truth far = same;
  far.points = -1.5;
  far.discordant = 0.02;
  constexpr int kMost = 8;
  const AnswerCounts none = rates(same, kComparisons, 3, kMost);
  CHECK(none.worse <= kAllowed);
  CHECK(none.matches > kComparisons / 2);
  CHECK(rates(at_margin, kComparisons, 3, kMost).matches <= kAllowed);
  const AnswerCounts clear = rates(far, kComparisons, 3, kMost);
  CHECK(clear.worse > kComparisons / 2);
  CHECK(clear.seeds < kMost);
}
