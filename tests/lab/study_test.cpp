// A study stops before a step of the lab's own run, with its bits.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/step_errors.h>
#include <gradual/lab/study.h>

using namespace gradual;

TEST_CASE("a study has the bits of the lab's run, in the next epoch too") {
  const lab::LabData data = lab::data_for("digits");
  const lab::MakeModel make = [] { return lab::make_mlp(64, 10); };
  lab::Options options{.epochs = 2};
  for (const char* recipe : {"fp32", "amp-fp16", "fp8-delayed", "e4m3:stochastic"}) {
    CAPTURE(std::string(recipe));
    const auto results = lab::compare(make, data, {amp::recipe(recipe)}, "", options);
    const std::vector<double>& loss = results[0].curve.loss;
    for (const std::int64_t step : {0, 7, 30}) {
      if (step == 30 && std::string(recipe).ends_with("stochastic")) continue;  // the lab's evaluation draws as well
      lab::Study study(make, data, amp::recipe(recipe), {.step = step, .epochs = 2});
      CHECK(study.step().loss.item() == loss.at(static_cast<std::size_t>(step)));
    }
  }
}

TEST_CASE("a study of a step below 0 is an Error") {
  CHECK_THROWS_WITH_AS(
      lab::Study([] { return lab::make_mlp(64, 10); }, lab::data_for("digits"), amp::recipe("fp32"), {.step = -1}),
      doctest::Contains("-1; it must be at least 0"), Error);
}

TEST_CASE("results hold the errors of a step after training, which survive a file") {
  const auto results = lab::compare([] { return lab::make_mlp(64, 10); }, lab::data_for("digits"),
                                    {amp::recipe("fp32"), amp::recipe("fp8-current")}, "", {.epochs = 1});
  for (const lab::Result& r : results) {
    REQUIRE(r.errors);
    CHECK(r.errors->rows.size() > 5);
    CHECK(lab::to_json(lab::step_errors_from(lab::to_json(*r.errors))) == lab::to_json(*r.errors));
  }
  const auto total = [](const lab::Result& r) {
    for (const auto& row : r.errors->rows)
      if (row.op.starts_with("linear")) return row.total;
    return 0.0;
  };
  CHECK(total(results[1]) > 1e3 * total(results[0]));
}
