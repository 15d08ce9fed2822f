// Phases of a recipe's schedule in what the lab writes.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>

#include <nlohmann/json.hpp>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

namespace {

amp::Recipe with_phases() {
  return amp::recipe_from_json(R"({"name": "phases", "base": "mxfp4", "schedule": [
    {"when": {"quantity": "gradient_to_noise", "below": 1000000, "steps": 3}, "recipe": "mxfp8"},
    {"last": 0.25, "recipe": "fp32"}]})");
}

}  // namespace

TEST_CASE("phases: their steps are in the results, the curves, the report and the table, and survive a stop") {
  const Folder folder("phases");
  lab::Options o{.epochs = 2, .batch = 32, .sample_every = 2};
  const auto whole = lab::compare(mlp, small_digits(), {with_phases()}, folder.path.string(), o);
  const lab::Result& r = whole[0];
  REQUIRE(r.phases.size() == 2);
  CHECK(r.phases[0].step == 3);
  CHECK(r.phases[0].recipe == "mxfp8");
  CHECK(r.phases[0].quantity == "gradient_to_noise");
  CHECK(r.phases[0].value > 0);
  CHECK(r.phases[0].value < 1e6);
  CHECK(r.phases[1].step == r.steps - (r.steps + 2) / 4);
  CHECK(r.phases[1].quantity.empty());
  for (std::size_t k = 0; k < r.curve.step.size(); ++k) {
    const std::int64_t step = r.curve.step[k];
    CHECK(r.curve.phase[k] == (step >= r.phases[0].step ? 1 : 0) + (step >= r.phases[1].step ? 1 : 0));
  }
  const auto run = nlohmann::json::parse(folder.read("results.json"))["runs"][0];
  CHECK(run["phases"][0]["step"] == 3);
  CHECK(run["phases"][0]["value"] == r.phases[0].value);
  CHECK(run["phases"][1]["value"].is_null());
  CHECK(folder.read("curves.csv").find("\nphases,0,2,") != std::string::npos);
  const std::string text = "from step 3 on as mxfp8: gradient_to_noise was ";
  CHECK(lab::to_string(r.phases[0]).starts_with(text));
  CHECK(lab::table(whole).find("phases: from step 3 on as mxfp8:") != std::string::npos);
  CHECK(folder.read("report.html").find("\"phases\":[{\"step\":3,\"recipe\":\"mxfp8\"") != std::string::npos);
  const auto back = lab::results_from_json(lab::results_json(whole, true), "memory");
  CHECK(back[0].phases.size() == 2);
  CHECK(back[0].curve.phase == r.curve.phase);

  const Folder parts("phases-stopped");
  int asked = 0;
  o.stop = [&] { return ++asked == 2; };  // before the phase begins
  CHECK(lab::compare(mlp, small_digits(), {with_phases()}, parts.path.string(), o)[0].status ==
        lab::Status::interrupted);
  o.stop = {};
  o.resume = true;
  const auto resumed = lab::compare(mlp, small_digits(), {with_phases()}, parts.path.string(), o);
  CHECK(resumed[0].curve.loss == r.curve.loss);
  CHECK(resumed[0].curve.phase == r.curve.phase);
  CHECK(resumed[0].phases[0].value == r.phases[0].value);
}
