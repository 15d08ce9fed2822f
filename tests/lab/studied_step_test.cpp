// Steps of any model under the tools of inspect/, as functions.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/studied_step.h>

#include <iterator>
#include <regex>
#include <string>

#include "comparison.h"

using namespace gradual;

namespace {

// The layers and parameters that the text names, at the beginning of a line or after "layer " and "of ".
int layers_of(const std::string& text, bool with_kind) {
  const std::regex layer(R"((^|\n| layer | of )[0-9]+([.][a-z]+)?(?![0-9.%a-z]))" +
                         std::string(with_kind ? R"( \([A-Z])" : R"((?! \([A-Z]))"));
  return static_cast<int>(std::distance(std::sregex_iterator(text.begin(), text.end(), layer), {}));
}

}  // namespace

TEST_CASE("study_step, diff_step and xray_step take a model, and show what the commands print") {
  const lab::LabData data = gradual::test::small_digits();
  const lab::StudyOptions options{.step = 2, .batch = 32, .epochs = 2};
  double loss = 0;
  {
    const auto step = lab::study_step(gradual::test::mlp, data, amp::recipe("mxfp8"), options);
    loss = step.loss;
    CHECK(loss > 0);
    REQUIRE(step.sites);
    CHECK(!step.sites->sites.empty());
    CHECK(!step.ledger.rows().empty());
    CHECK(!step.blocks.sites().empty());
    const std::string text = to_string(step);
    for (const char* part :
         {"The loss, and the ops", "Who loses the bits", "What each site", "The updates", "The scales"})
      CHECK(text.find(part) != std::string::npos);
    CAPTURE(text);
    CHECK(layers_of(text, true) > 20);
    CHECK(layers_of(text, false) == 0);
  }
  CHECK(lab::xray_step(gradual::test::mlp, data, amp::recipe("mxfp8"), options).loss == loss);
  {
    const amp::Recipe fp32 = amp::recipe("fp32");
    const auto step = lab::diff_step(gradual::test::mlp, data, fp32, amp::recipe("e3m2"), fp32, options);
    CHECK(step.diff().first_departure() != nullptr);
    const auto same = step.diff().to_string("fp32", "e3m2");
    CHECK(same.find("difference") != std::string::npos);
  }
  for (const bool convolutions : {false, true}) {
    const auto make_model = [convolutions] {
      return convolutions ? lab::make_cnn(1, 8, 8, 10) : lab::make_mlp(64, 10);
    };
    const amp::Recipe fp32 = amp::recipe("fp32");
    const auto step = lab::diff_step(make_model, data, amp::recipe("amp-bf16"), amp::recipe("amp-fp16"), fp32, options);
    for (const auto& pair : step.diff().pairs()) {
      CAPTURE(pair.a->op);
      if (pair.a->phase == Phase::forward) CHECK_FALSE(pair.departs());
    }
  }
  {
    // The lab computes the loss: its own line is no place.
    amp::Recipe rounded = amp::recipe("amp-bf16");
    rounded.policy.emplace_back(OpId::cross_entropy, amp::CastPolicy::lower());
    const auto step = lab::diff_step(gradual::test::mlp, data, amp::recipe("amp-bf16"), rounded, rounded, options);
    REQUIRE(step.diff().first_departure());
    CHECK(step.diff().first_departure()->a->own_line);
    CHECK(step.diff().to_string("amp-bf16", "rounded").find(".cpp:") == std::string::npos);
  }
  CHECK_THROWS_WITH_AS(lab::xray_step(gradual::test::mlp, data, amp::recipe("amp-bf16"), options),
                       doctest::Contains("no scales of blocks"), Error);
}

TEST_CASE("diff_step: both sides have the same dropout, also where one rounds at random") {
  const lab::LabData data = gradual::test::small_digits();
  const lab::StudyOptions options{.step = 2, .batch = 32, .epochs = 2};
  const auto make_model = [] {
    return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(64, 32), nn::Dropout(0.5), nn::Linear(32, 32),
                                            nn::Dropout(0.5), nn::Linear(32, 10));
  };
  amp::Recipe operands = amp::recipe("mxfp8");
  operands.quantization->forward_x->rounding.mode = RoundingMode::stochastic;
  const amp::Recipe fp32 = amp::recipe("fp32");
  for (const amp::Recipe& at_random : {operands, amp::recipe("pure:e5m6:stochastic")}) {
    const std::string text =
        lab::diff_step(make_model, data, at_random, fp32, fp32, options).diff().to_string("at-random", "fp32");
    CAPTURE(text);
    std::smatch found;
    const std::regex numbers(R"(difference ([-+.e0-9]+)[^(]*\(([-+.e0-9]+) of it explained)");
    REQUIRE(std::regex_search(text, found, numbers));
    CHECK(std::stod(found[2]) == doctest::Approx(std::stod(found[1])).scale(0).epsilon(0.2));
  }
}

TEST_CASE("diff_step: a phase that a measured quantity begins is where the recipe's own training has it") {
  const lab::LabData data = gradual::test::small_digits();
  const lab::StudyOptions options{.step = 2, .batch = 32, .epochs = 2};
  const auto phased = [](double below) {
    amp::Recipe r = amp::recipe("mxfp4");
    r.name = "phased";
    r.schedule = {
        {.recipe = "mxfp8", .when = amp::PhaseCondition{.quantity = MeasuredQuantity::gradient_norm, .below = below}}};
    return r;
  };
  for (const bool begins : {true, false}) {
    CAPTURE(begins);
    const amp::Recipe r = phased(begins ? 1e30 : 1e-30);
    const auto departs_from = [&](const char* name) {
      const auto step = lab::diff_step(gradual::test::mlp, data, r, amp::recipe(name), r, options);
      return step.diff().first_departure() != nullptr;
    };
    CHECK(departs_from("mxfp8") != begins);
    CHECK(departs_from("mxfp4") == begins);
  }
  // Another recipe's training does not say whether the phase would have begun.
  const amp::Recipe r = phased(1e30);
  const amp::Recipe other = amp::recipe("mxfp4");
  const auto refused = doctest::Contains("recipe 'phased' has a phase with `when`, which only its own training begins");
  CHECK_THROWS_WITH_AS(lab::diff_step(gradual::test::mlp, data, r, other, other, options), refused, Error);
  CHECK_THROWS_WITH_AS(lab::diff_step(gradual::test::mlp, data, other, r, other, options), refused, Error);
}
