// What a comparison teaches: each effect where the results have it, and only there; the table in 80 columns.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/conclusions.h>
#include <gradual/lab/lab.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

namespace {

using inspect::Cause;
using lab::VerdictKind;

lab::Result run(const std::string& recipe, const lab::Outcome& outcome, double accuracy, double loss) {
  lab::Result r{.recipe = recipe, .model = "m", .data = "d", .test_loss = loss, .test_accuracy = accuracy};
  r.test_samples = 1000;
  r.status = lab::Status::ok;
  r.verdict = {outcome};
  r.definition = amp::to_json(amp::recipe(recipe));
  r.steps = 92;
  r.origin = {"gradual-lab", {"--epochs", "4"}, recipe};
  if (recipe != "fp32") {
    r.difference = {accuracy - 0.98, 0.01};
    r.loss_difference = {loss - 0.1, 0.01};
  }
  return r;
}

std::vector<lab::Effect> effects(const std::vector<lab::Result>& results) {
  std::vector<lab::Effect> names;
  for (const lab::Conclusion& c : lab::conclusions(results)) names.push_back(c.effect);
  return names;
}

using Effects = std::vector<lab::Effect>;

constexpr lab::Outcome kBaseline{.kind = VerdictKind::baseline};
constexpr lab::Outcome kNoLearning{.kind = VerdictKind::no_learning};
constexpr lab::Outcome kDiverged{.kind = VerdictKind::diverged, .step = 1};
constexpr lab::Outcome matches(double points = 0) {
  return {.kind = VerdictKind::matches, .points = points, .interval = 1};
}
constexpr lab::Outcome worse(double points) { return {.kind = VerdictKind::worse, .points = -points, .interval = 1}; }

}  // namespace

TEST_CASE("scales: two recipes of the same bits, one with scales, that differ by more than their intervals") {
  const lab::Result fp32 = run("fp32", kBaseline, 0.98, 0.1);
  const lab::Result mx = run("mxfp6", matches(), 0.98, 0.1);
  CHECK(effects({fp32, mx, run("e3m2", worse(30), 0.68, 0.9)}) == Effects{lab::Effect::scale, lab::Effect::narrowest});
  CHECK(effects({fp32, mx, run("e3m2", matches(), 0.975, 0.1)}) == Effects{lab::Effect::narrowest});
  const auto told = lab::conclusions({fp32, mx, run("e3m2", worse(30), 0.68, 0.9)});
  CHECK(told[0].sentence ==
        "mxfp6 and e3m2 round to the same 6 bits. mxfp6 has scales and reaches 98.0%; without scales e3m2 reaches "
        "68.0%.");
  CHECK(told[0].command == "gradual-lab diff --epochs 4 --step 50 e3m2 mxfp6");
}

TEST_CASE("range: as many bits without scales, parted otherwise") {
  lab::Result wide = run("e5m2", matches(), 0.98, 0.1);
  lab::Result fine = run("e4m3", worse(8), 0.9, 0.5);
  wide.zero_percent = 60;
  fine.zero_percent = 97;
  const auto told = lab::conclusions({run("fp32", kBaseline, 0.98, 0.1), wide, fine});
  REQUIRE(told.size() == 2);
  CHECK(told[0].effect == lab::Effect::range);
  CHECK(told[0].sentence.find("With 5 bits for the exponent 60% of the gradients are zero and the accuracy is 98.0%; "
                              "with 4 bits it is 97% and 90.0%.") != std::string::npos);
}

TEST_CASE("loss: fp32's accuracy without its loss; the narrowest recipe has both") {
  const lab::Result fp32 = run("fp32", kBaseline, 0.98, 0.1);
  const lab::Outcome worse_loss{.kind = VerdictKind::worse_loss, .points = 0, .interval = 1};
  const auto told = lab::conclusions({fp32, run("mxfp8", matches(), 0.98, 0.1), run("mxfp4", worse_loss, 0.98, 0.15)});
  REQUIRE(told.size() == 2);
  CHECK(told[0].sentence ==
        "The accuracy of mxfp4 is not certainly below fp32's, but its test loss is above: 0.150, and fp32's 0.100 "
        "(+0.050 ± "
        "0.010).");
  CHECK(told[1].sentence.starts_with("mxfp8 rounds every operand of a product to 8 bits or fewer"));
  CHECK(lab::conclusions({fp32, run("mxfp4", {.kind = VerdictKind::undecided}, 0.98, 0.15)}).empty());
}

TEST_CASE("nothing ends where fp32 does if fp32 is not better than one answer for all") {
  const auto told = [](double accuracy, double constant) {
    lab::Result fp32 = run("fp32", kBaseline, accuracy, 0.1);
    fp32.constant_metric = constant;
    fp32.test_samples = 360;
    return lab::conclusions({fp32, run("mxfp8", matches(), accuracy, 0.1)});
  };
  CHECK(told(0.0938, 0.11).empty());
  CHECK(told(0.13, 0.11).empty());  // by chance
  CHECK(told(0.98, 0.11).size() == 1);
}

TEST_CASE("conclusions name another metric than accuracy") {
  const auto with_rmse = [](lab::Result r, double value) {
    r.metric = {"rmse", "", lab::Direction::lower};
    r.test_metric = value;
    r.test_accuracy = NAN;
    if (r.difference) r.difference = {value - 0.3, 0.001};
    return r;
  };
  lab::Result wide = with_rmse(run("e5m2", matches(), 0.98, 0.1), 0.3);
  lab::Result fine = with_rmse(run("e4m3", worse(8), 0.9, 0.5), 0.7);
  wide.zero_percent = 60;
  fine.zero_percent = 97;
  const auto told = lab::conclusions({with_rmse(run("fp32", kBaseline, 0.98, 0.1), 0.3), wide, fine});
  REQUIRE(!told.empty());
  CHECK(told[0].sentence.find("are zero and the rmse is 0.3; with 4 bits it is 97% and 0.7.") != std::string::npos);
}

TEST_CASE("failures carry their cause in plain words, every cause has some, and pairs are not told twice") {
  lab::Result bad = run("fp16-pure", kDiverged, NAN, NAN);
  bad.findings = {{.cause = Cause::adam_eps, .step = 0, .sentence = "eps is 0 in f16", .remedy = "FP32 masters"}};
  const auto told = lab::conclusions({run("fp32", kBaseline, 0.98, 0.1), bad});
  REQUIRE(told.size() == 1);
  CHECK(told[0].sentence ==
        "fp16-pure diverged at step 1: Adam divides by the root of a mean of squared gradients plus a tiny eps; both "
        "became 0. eps is 0 in f16. Cure: FP32 masters.");
  CHECK(told[0].command == "gradual-lab step --epochs 4 --recipe fp16-pure --step 0");
  lab::Result e3m2 = run("e3m2", kNoLearning, 0.1, 2.5);
  e3m2.findings = {{.cause = Cause::gradient_underflow, .sentence = "all is 0"}};
  CHECK(effects({run("fp32", kBaseline, 0.98, 0.1), run("mxfp6", matches(), 0.98, 0.1), e3m2}) ==
        Effects{lab::Effect::scale, lab::Effect::narrowest});
  for (const inspect::CauseInfo& info : inspect::kCauseInfos) {
    bad.findings[0].cause = info.cause;
    const std::string sentence = lab::conclusions({run("fp32", kBaseline, 0.98, 0.1), bad})[0].sentence;
    const bool known = info.cause != Cause::unknown;
    CHECK_MESSAGE((sentence.find(": " + std::string(info.sentence) + ". ") != std::string::npos) == known, sentence);
  }
}

TEST_CASE("the table has at most 80 columns, whatever the names") {
  lab::Result longer =
      run("fp16-static:1024", {.kind = VerdictKind::mostly_skipped, .skipped = 371, .steps = 375}, 0.1, 2.3);
  longer.recipe = "a-recipe-with-a-name-that-goes-on-and-on";
  longer.casts = {
      {.role = amp::Role::error, .layer = "blocks.10.self_attention.out_projection", .underflow_percent = 100}};
  std::istringstream lines(lab::table({run("fp32", kBaseline, 0.98, 0.1), longer}, {.wide = false}));
  for (std::string line; std::getline(lines, line);) {
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
    CHECK_MESSAGE(columns <= 80, line);
  }
  CHECK(lab::table({longer}, {.wide = false, .colour = true}).find("\033[31mmostly skipped    \033[0m") !=
        std::string::npos);
  CHECK(lab::table({longer}, {.wide = false}).find('\033') == std::string::npos);
}

TEST_CASE("the narrow table has the findings of a tried cure whole") {
  lab::Result tried = run("fp16-pure", kDiverged, 0.1, 2.3);
  tried.findings = {
      {.cause = Cause::adam_eps, .step = 0, .sentence = "eps is 0 in f16", .tried = lab::Finding::Tried{}}};
  CHECK(lab::table({tried}, {.wide = false}).find("\n  step 0: eps is 0 in f16 [adam-eps]") != std::string::npos);
}
