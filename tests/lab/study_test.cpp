// A study stops before a step of the lab's own run, with its bits.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
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
      lab::Study study(make, data, amp::recipe(recipe), {.step = step, .epochs = 2});
      CHECK(study.step().loss.item() == loss.at(static_cast<std::size_t>(step)));
    }
  }
}

TEST_CASE("a study augments batches as the lab's run does") {
  lab::LabData data = lab::data_for("digits");
  data.augment = [](const data::Batch& batch) {
    data::Batch changed = batch;
    changed.inputs = batch.inputs + randn(batch.inputs.sizes());
    return changed;
  };
  const lab::MakeModel make = [] { return lab::make_mlp(64, 10); };
  const auto results = lab::compare(make, data, {amp::recipe("fp32")}, "", {.epochs = 1});
  lab::Study study(make, data, amp::recipe("fp32"), {.step = 5, .epochs = 1});
  CHECK(study.step().loss.item() == results[0].curve.loss.at(5));
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
    CHECK(r.updates.size() == 6);  // weights and biases of three layers
    for (const lab::UpdateCurve& u : r.updates) {
      CAPTURE(u.parameter);
      CHECK(u.step.size() == 2);  // 0 and 16, of 23 steps
      CHECK(u.arriving[0] == doctest::Approx(1).epsilon(1e-3));
      CHECK(u.cloud.step == 0);  // the last one of the first half
      CHECK(u.cloud.dtype == "f32");
      CHECK(u.cloud.log2_update.size() == u.cloud.arrives.size());
      CHECK(u.cloud.arrives.size() > 5);
    }
    CHECK(r.blocks.empty());
    CHECK(lab::results_json(lab::results_from_json(lab::results_json({r}, true), "file"), true) ==
          lab::results_json({r}, true));
  }
  const auto total = [](const lab::Result& r) {
    for (const auto& row : r.errors->rows)
      if (row.op.starts_with("linear")) return row.total;
    return 0.0;
  };
  CHECK(total(results[1]) > 1e3 * total(results[0]));
}

TEST_CASE("results of a recipe with scales of blocks have a map of each operand") {
  const lab::Result r = lab::compare([] { return lab::make_mlp(64, 10); }, lab::data_for("digits"),
                                     {amp::recipe("mxfp4")}, "", {.epochs = 1})[0];
  REQUIRE(r.blocks.size() >= 15);  // six operands of three layers; the first one's input wants no gradient
  const lab::BlockMap& x = r.blocks[0];
  CHECK(x.operand == "forward_x");
  CHECK(x.block == 32);
  CHECK(x.columns == 2);  // of 64 inputs
  CHECK(x.clipped_percent.size() == 128);
  CHECK(x.regret_percent.size() == 128);
  const auto back = lab::results_from_json(lab::results_json({r}, true), "file").at(0);
  CHECK(back.blocks.at(0).clipped_percent == x.clipped_percent);
}

TEST_CASE("a histogram has the formats of all modules and products, and the what-if table those that are not common") {
  amp::Recipe mixed = amp::recipe("e4m2");
  mixed.quantization->modules = {{"1", "mxfp4"}};
  const lab::Result r = lab::compare([] { return lab::make_mlp(64, 10); }, lab::data_for("digits"), {mixed}, "",
                                     {.epochs = 1, .sample_every = 1000})[0];
  REQUIRE(r.histograms[0].formats.size() == 2);
  CHECK(r.histograms[0].formats[0].name == "e4m2");
  CHECK(r.histograms[0].formats[1].name == "e2m1fn");
  CHECK(r.what_if.find("\"e4m2\"") != std::string::npos);
}
