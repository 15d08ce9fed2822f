// Means, deviations and intervals over seeds, against numbers computed elsewhere (Student's t from its density).
#include <doctest/doctest.h>
#include <gradual/lab/statistics.h>

#include <cmath>

#include "ended_run.h"

using namespace gradual::lab;
using gradual::test::ended_run;

namespace {

const std::vector<Result> kRuns = {ended_run("fp32", 0, 0.98, 0.10),  ended_run("fp32", 1, 0.97, 0.12),
                                   ended_run("fp32", 2, 0.985, 0.11), ended_run("low", 0, 0.95, 0.20),
                                   ended_run("low", 1, 0.96, 0.25),   ended_run("low", 2, 0.97, 0.22)};

}  // namespace

TEST_CASE("spread takes the finite values; one value has no deviation") {
  const Spread s = spread({1, NAN, 2, 4, INFINITY});
  CHECK(s.count == 3);
  CHECK(s.mean == doctest::Approx(7.0 / 3));
  CHECK(s.deviation == doctest::Approx(std::sqrt(7.0 / 3)));
  CHECK(std::isnan(spread({1}).deviation));
  CHECK(std::isnan(spread({}).mean));
}

TEST_CASE("without samples the interval of accuracy is a moderated t with the variance of two shares") {
  const Pairs pairs = pairs_with_fp32(kRuns, {}, "low");
  REQUIRE(pairs.size() == 3);
  for (const auto& [low, fp32] : pairs) CHECK(low->seed == fp32->seed);
  const Difference d = metric_difference(pairs);
  CHECK(d.mean == doctest::Approx(-0.0183333333));
  CHECK(d.half == doctest::Approx(0.0237860).epsilon(1e-3));
  const Difference one = metric_difference({pairs[0]});
  CHECK(one.mean == doctest::Approx(-0.03));
  CHECK(one.half == doctest::Approx(0.0833520).epsilon(1e-3));
}

TEST_CASE("differences of loss have Student's interval, and none for one seed") {
  const Pairs pairs = pairs_with_fp32(kRuns, {}, "low");
  const Difference d = loss_difference(pairs);
  CHECK(d.mean == doctest::Approx(0.1133333));
  CHECK(d.half == doctest::Approx(0.0379458).epsilon(1e-3));
  CHECK(std::isnan(loss_difference({pairs[0]}).half));
}

TEST_CASE("a run that diverges, and one whose fp32 does, is no pair; references stand in for fp32") {
  std::vector<Result> runs = kRuns;
  runs[3].status = Status::diverged;
  runs[1].status = Status::diverged;
  const Pairs pairs = pairs_with_fp32(runs, {}, "low");
  REQUIRE(pairs.size() == 1);
  CHECK(pairs[0].first->seed == 2);
  const std::vector<Result> low(kRuns.begin() + 3, kRuns.end());
  const std::vector<Result> fp32(kRuns.begin(), kRuns.begin() + 3);
  CHECK(pairs_with_fp32(low, fp32, "low").size() == 3);
  CHECK(pairs_with_fp32(low, {}, "low").empty());
}
