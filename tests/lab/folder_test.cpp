// Folders of results: what a second comparison may do there, and reading them again.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/folder.h>
#include <gradual/lab/lab.h>

#include <nlohmann/json.hpp>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

TEST_CASE("a second comparison does not replace the first unless it is told to") {
  const Folder folder("kept");
  const lab::Options o{.model_name = "mlp", .epochs = 1, .batch = 32};
  lab::compare(mlp, small_digits(), recipes({"fp32", "amp-fp16"}), folder.path.string(), o);
  const std::string first = folder.read("results.json");
  const std::string refused =
      message([&] { lab::compare(mlp, small_digits(), recipes({"fp32"}), folder.path.string(), o); });
  CHECK(refused == "the folder " + folder.path.string() +
                       " holds the results of an earlier comparison; choose another, replace them (overwrite) or "
                       "continue (resume)");
  CHECK(folder.read("results.json") == first);
  lab::Options replace = o;
  replace.overwrite = true;
  lab::compare(mlp, small_digits(), recipes({"fp32"}), folder.path.string(), replace);
  CHECK(lab::load_results(folder.path.string()).size() == 1);
}

TEST_CASE("results come back whole, from results.json alone without curves") {
  const Folder folder("loaded");
  const lab::Options o{.model_name = "mlp", .epochs = 1, .batch = 32, .seeds = 2};
  const auto made = lab::compare(mlp, small_digits(), recipes({"fp32", "bf16-pure"}), folder.path.string(), o);
  const auto read = lab::load_results(folder.path.string());
  REQUIRE(read.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(read[i].recipe == made[i].recipe);
    CHECK(read[i].curve.loss == made[i].curve.loss);
    CHECK(to_string(read[i].verdict) == to_string(made[i].verdict));
    CHECK(read[i].verdict.kind == made[i].verdict.kind);
    REQUIRE(read[i].difference.has_value() == made[i].difference.has_value());
    if (read[i].difference) CHECK(read[i].difference->half == made[i].difference->half);
  }
  CHECK(lab::report_html(read) == folder.read("report.html"));
  fs::remove(folder.path / "checkpoints/finished.json");
  const auto bare = lab::load_results(folder.path.string());
  REQUIRE(bare.size() == 4);
  CHECK(bare[2].curve.step.empty());
  CHECK(bare[2].test_loss == made[2].test_loss);
  CHECK(message([] { lab::load_results("no-such-folder"); }) ==
        "the folder no-such-folder holds no results.json of a comparison");
}

TEST_CASE("runs.csv has a line a run, whose fields results.json has too") {
  lab::Result r{.recipe = "a, b", .model = "m", .data = "d", .seed = 3, .test_loss = 0.5};
  r.peak_total = 7;
  const std::string csv = lab::runs_csv({r, r});
  CHECK(csv.starts_with("recipe,model,data,seed,epochs,steps,skipped_steps,final_scale,train_loss,test_loss,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 3);
  CHECK(csv.find("\n\"a, b\",m,d,3,0,0,0,1.0,,0.5,") != std::string::npos);
  CHECK(csv.find(",7,") != std::string::npos);
  CHECK(csv.find('{') == std::string::npos);
}
