// --cure: which cures of which findings are trained, and what the verdict on them decides.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/cures.h>
#include <gradual/lab/cure_trials.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/verdict.h>

#include <string>
#include <utility>
#include <vector>

#include "comparison.h"

using namespace gradual;
using lab::VerdictKind;

namespace {

const data::Split& digits() {
  static const data::Split split = data::split(data::digits(), 1437, 0);
  return split;
}

const lab::Options& options() {
  static const lab::Options o{.epochs = 3};
  return o;
}

// fp32, and the recipe e3m2, which is worse.
const std::vector<lab::Result>& compared() {
  static const std::vector<lab::Result> results =
      lab::compare(gradual::test::mlp, digits(), {amp::recipe("fp32"), amp::recipe("e3m2")}, "", options());
  return results;
}

// The edit of e3m2 that makes another recipe of it.
lab::Finding::Cure to(const std::string& recipe) {
  return {.edit = inspect::edit(amp::recipe("e3m2"), amp::recipe(recipe)), .remedy = recipe};
}

lab::Finding finding(inspect::Cause cause, std::vector<lab::Finding::Cure> cures) {
  lab::Finding f{.cause = cause, .sentence = "planted"};
  f.cures = std::move(cures);
  return f;
}

// The findings of e3m2 after its trials, if it has these before.
std::vector<lab::Finding> tried(std::vector<lab::Finding> findings) {
  std::vector<lab::Result> results = compared();
  results[1].findings = std::move(findings);
  lab::try_cures(gradual::test::mlp, lab::LabData(digits()), {amp::recipe("e3m2")}, options(), results, {});
  return results[1].findings;
}

}  // namespace

TEST_CASE("a cure that learns as much with far more loss than fp32 is refused, and the next one is tried") {
  REQUIRE(compared()[1].verdict.fails());
  const lab::Finding f = tried({finding(inspect::Cause::format_range, {to("mxfp4"), to("amp-bf16")})}).front();
  CHECK(f.remedy == "amp-bf16");
  REQUIRE(f.tried);
  CHECK_FALSE(lab::verdict_info(f.tried->verdict.kind).fails);
  const lab::Finding refused = tried({finding(inspect::Cause::format_range, {to("mxfp4")})}).front();
  REQUIRE(refused.tried);
  MESSAGE(to_string(refused.tried->verdict));
  CHECK(refused.tried->verdict.kind == VerdictKind::worse_loss);
}

TEST_CASE("of cures that all bring the run back the first wins") {
  for (const bool swapped : {false, true}) {
    std::vector<lab::Finding::Cure> cures = {to("amp-bf16"), to("tf32")};
    if (swapped) std::swap(cures[0], cures[1]);
    const lab::Finding f = tried({finding(inspect::Cause::format_range, cures)}).front();
    CHECK(f.remedy == cures[0].remedy);
  }
}

TEST_CASE("a finding whose cures fail comes after one whose cure brings the run back") {
  const std::vector<lab::Finding> found =
      tried({finding(inspect::Cause::clipping, {to("mxfp4")}), finding(inspect::Cause::format_range, {to("amp-bf16")}),
             finding(inspect::Cause::scale_range, {to("tf32")})});
  REQUIRE(found.size() == 3);
  CHECK(found[0].cause == inspect::Cause::format_range);
  CHECK(found[1].cause == inspect::Cause::clipping);
  CHECK(found[1].tried.has_value());
  CHECK_FALSE(found[2].tried.has_value());
}

TEST_CASE("with --cure the smallest edit that passes is the cure, whatever trials of some steps say") {
  lab::Options o = options();
  o.cure = true;
  const std::vector<lab::Result> results =
      lab::compare(gradual::test::mlp, digits(), {amp::recipe("fp32"), amp::recipe("e3m2")}, "", o);
  REQUIRE(!results[1].findings.empty());
  const lab::Finding& f = results[1].findings.front();
  REQUIRE(f.tried);
  CHECK_FALSE(lab::verdict_info(f.tried->verdict.kind).fails);
  REQUIRE(f.cures.size() > 1);
  CAPTURE(f.cures[1].remedy);
  CHECK(f.cure == f.cures[0].edit);
  CHECK(f.remedy.starts_with("one scale per tensor"));
}
