// Steps of any model under the tools of inspect/, as functions.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/studied_step.h>

#include <string>

#include "comparison.h"

using namespace gradual;

TEST_CASE("study_step, diff_step and xray_step take a model, and show what the commands print") {
  const lab::LabData data = test::small_digits();
  const lab::StudyOptions options{.step = 2, .batch = 32, .epochs = 2};
  double loss = 0;
  {
    const auto step = lab::study_step(test::mlp, data, amp::recipe("mxfp8"), options);
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
  }
  CHECK(lab::xray_step(test::mlp, data, amp::recipe("mxfp8"), options).loss == loss);
  {
    const amp::Recipe fp32 = amp::recipe("fp32");
    const auto step = lab::diff_step(test::mlp, data, fp32, amp::recipe("e3m2"), fp32, options);
    CHECK(step.diff().first_departure() != nullptr);
    const auto same = step.diff().to_string("fp32", "e3m2");
    CHECK(same.find("difference") != std::string::npos);
  }
  CHECK_THROWS_WITH_AS(lab::xray_step(test::mlp, data, amp::recipe("amp-bf16"), options),
                       doctest::Contains("no scales of blocks"), Error);
}
