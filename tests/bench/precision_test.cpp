// The benchmark of precision failures (bench/precision): its table of kinds, its rules, and three instances.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/cures.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "../../bench/precision/answers.h"
#include "../../bench/precision/diagnosis_score.h"
#include "../../bench/precision/kinds.h"
#include "../../bench/precision/score_table.h"

using namespace gradual;
using namespace gradual::precision_bench;

namespace {

const Kind& kind_named(std::string_view name) {
  const auto at = std::ranges::find_if(kinds(), [&](const Kind& kind) { return kind.name == name; });
  REQUIRE(at != kinds().end());
  return *at;
}

// The first draw that counts.
Score scored(const std::string& name, Family family) {
  const Kind& kind = kind_named(name);
  for (int attempt = 0; attempt < 6; ++attempt) {
    const Instance instance = draw_instance(kind, family, 0, 7, attempt);
    if (check(instance, base_instance(kind, family, 0, 7, attempt)).counts) return diagnose(instance);
  }
  return {};
}

}  // namespace

TEST_CASE("the table has 100 failures of 30 kinds in 5 families, and 100 healthy runs") {
  std::map<Group, int> instances;
  std::map<Group, int> all;
  std::set<std::string> names;
  std::set<Family> families;
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.name);
    CHECK(names.insert(kind.name).second);
    CHECK(std::string(kind.about).size() > 10);
    CHECK(kind.each >= 1);
    CHECK_FALSE(kind.families.empty());
    ++all[kind.group];
    instances[kind.group] += kind.each * static_cast<int>(kind.families.size());
    if (kind.group == Group::failure) families.insert(kind.families.begin(), kind.families.end());
  }
  CHECK(instances[Group::failure] >= 100);
  CHECK(all[Group::failure] >= 30);
  CHECK(families.size() >= 5);
  CHECK(instances[Group::healthy] >= 100);
  CHECK(all[Group::control] >= 8);
}

TEST_CASE("every truth is complete, and follows from the seed alone") {
  for (const Kind& kind : kinds())
    for (const Family family : kind.families) {
      const Instance i = draw_instance(kind, family, 0, 3, 0);
      CAPTURE(i.id());
      const auto described = nlohmann::json::parse(describe(i));
      CHECK(described.at("truth").is_object());
      CHECK(describe(i) == describe(draw_instance(kind, family, 0, 3, 0)));
      CHECK(describe(i) != describe(draw_instance(kind, family, 0, 4, 0)));
      CHECK(describe(i) != describe(draw_instance(kind, family, 0, 3, 1)));
      amp::check_valid(i.recipe);
      CHECK((i.group == Group::healthy) == i.truth.causes.empty());
      if (i.group == Group::healthy) continue;
      for (const inspect::Cause cause : i.truth.causes)
        CHECK(described.dump().find(to_string(cause)) != std::string::npos);
      CHECK_FALSE(i.truth.cure.empty());
      if (i.group == Group::control) continue;
      CHECK(!i.truth.roles.empty());
      amp::check_valid(i.truth.cured);
      CHECK_FALSE(i.truth.specific.empty());
      CHECK(is_specific(i.recipe, i.truth.cured, i.truth.specific));
    }
}

TEST_CASE("a site is the named module with its parts, or a line of the named ones") {
  CHECK(is_site("b1.layer", {"b1"}));
  CHECK(is_site("b1.layer.weight", {"b1.layer"}));
  CHECK(is_site("b1.layer#2", {"b1.layer"}));
  CHECK_FALSE(is_site("b10.layer", {"b1"}));
  CHECK_FALSE(is_site("", {"b1"}));
  CHECK(is_site("bench/precision/losses.cpp:20", {"losses.cpp:14-20"}));
  CHECK_FALSE(is_site("losses.cpp:21", {"losses.cpp:14-20"}));
}

TEST_CASE("a cure is specific by the fields that it changes") {
  const amp::Recipe from = amp::recipe("fp16-master");
  amp::Recipe scaled = from;
  scaled.scaling->init_scale = 8;
  CHECK(is_specific(from, scaled, {"/scaling"}));
  CHECK_FALSE(is_specific(from, scaled, {"/masters", "/scal"}));
  CHECK_FALSE(is_specific(from, from, {"/scaling"}));
  CHECK_FALSE(is_specific(from, amp::recipe("bf16-master"), {"/scaling"}));
  amp::Recipe blocks = amp::recipe("mxfp4");
  set_rule(blocks.quantization->forward_x->scaling, ScaleRule::rceil);
  CHECK(is_specific(amp::recipe("mxfp4"), blocks, {"/quantization/forward_x/scaling/rule"}));
  CHECK_FALSE(is_specific(amp::recipe("mxfp4"), blocks, {"/quantization/forward_x/scaling/block"}));
}

TEST_CASE("an instance that does not hurt does not count") {
  const Kind& kind = kind_named("activation-clipped");
  Instance i = draw_instance(kind, Family::mlp, 0, 7, 0);
  i.recipe = i.truth.cured;
  CHECK_FALSE(check(i, base_instance(kind, Family::mlp, 0, 7, 0)).counts);
  Instance unmended = draw_instance(kind, Family::mlp, 0, 7, 0);
  unmended.truth.cured = unmended.recipe;
  CHECK_FALSE(check(unmended, base_instance(kind, Family::mlp, 0, 7, 0)).counts);
}

TEST_CASE("answers of another tool are scored by the same rules") {
  const Instance failure = draw_instance(kind_named("activation-clipped"), Family::mlp, 0, 7, 0);
  const Instance control = draw_instance(kind_named("nan-in-data"), Family::mlp, 0, 7, 0);
  const Instance healthy = draw_instance(kind_named("half"), Family::mlp, 0, 7, 0);
  const std::string cure = inspect::edit(failure.recipe, failure.truth.cured);
  const Answers answers =
      answers_from_json(R"({"activation-clipped/mlp/0": {"cause": "clipping", "site": ")" + failure.truth.sites[0] +
                        R"(", "phase": "forward", "role": "activation", "cure": )" + cure +
                        R"(}, "nan-in-data/mlp/0": [{"cause": "clipping"}, {"cause": "data"}],
                                                "half/mlp/0": null})");
  const Score right = score_of(failure, answers.at(failure.id()));
  CHECK(right.cause_first);
  CHECK(right.site_right);
  CHECK(right.phase_right);
  CHECK(right.role_right);
  CHECK(right.specific);
  CHECK(right.cure_works);
  CHECK(right.verdict_right);
  const Score second = score_of(control, answers.at(control.id()));
  CHECK_FALSE(second.cause_first);
  CHECK(second.cause_listed);
  CHECK_FALSE(second.verdict_right);
  CHECK_FALSE(score_of(healthy, answers.at(healthy.id())).false_alarm);
  CHECK(score_of(healthy, {{.cause = inspect::Cause::clipping}}).false_alarm);
  Answer elsewhere = answers.at(failure.id())[0];
  elsewhere.role = Role::weight;
  elsewhere.site = "nowhere";
  elsewhere.cure.clear();
  const Score wrong = score_of(failure, {elsewhere});
  CHECK_FALSE(wrong.role_right);
  CHECK_FALSE(wrong.site_right);
  CHECK_FALSE(wrong.cure_works);
  Instance without_roles = failure;
  without_roles.truth.roles.clear();
  CHECK_THROWS_WITH_AS(score_of(without_roles, {}), doctest::Contains("names no role"), Error);
  const Score silent = score_of(failure, {});
  CHECK(silent.has_site);
  CHECK_FALSE(silent.cause_first);
  const std::string table = table_of({right, silent});
  CHECK(table.find("| site right: layer or line, phase, and role | at least 90% | 1 of 2 (50%) |") !=
        std::string::npos);
  CHECK(table.find("| median cost of a diagnosis | at most 1.5 runs | - | not measured |") != std::string::npos);
}

TEST_CASE("a file of answers that is wrong names the instance and the field") {
  const auto refused = [](const std::string& text, const std::string& message) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(answers_from_json(text), doctest::Contains(message.c_str()), Error);
  };
  refused("[1]", "no JSON object");
  refused(R"({"a/mlp/0": {"cause": "clippin"}})", "a/mlp/0: cause is 'clippin'; allowed are adam-eps");
  refused(R"({"a/mlp/0": {"role": "operand"}})", "a/mlp/0: role is 'operand'; allowed are none, activation");
  refused(R"({"a/mlp/0": {"phase": "later"}})", "a/mlp/0: phase is 'later'; allowed are forward");
  refused(R"({"a/mlp/0": {"why": "x"}})", "a/mlp/0: no field 'why'");
  refused(R"({"a/mlp/0": {"cure": "bf16"}})", "a/mlp/0: cure is \"bf16\"; an object is expected");
  refused(R"({"a/mlp/0": {"site": 3}})", "a/mlp/0: site is 3; a text is expected");
  refused(R"({"a/mlp/0": 4})", "a/mlp/0 is 4; an object is expected");
}

TEST_CASE("three instances from the draw to the table") {
  const Score clipped = scored("activation-clipped", Family::mlp);
  CHECK(clipped.counts);
  CHECK(clipped.verdict_right);
  CHECK(clipped.cause_first);
  CHECK(clipped.site_right);
  CHECK(clipped.role == "activation");
  CHECK(clipped.role_right);
  CHECK(clipped.cost > 0);
  CHECK(scored("nan-in-data", Family::mlp).cause_first);
  const Score healthy = scored("half", Family::mlp);
  CHECK(healthy.counts);
  CHECK_FALSE(healthy.false_alarm);
  const Score again = score_from_json(to_json(clipped)).value();
  CHECK(!score_from_json(to_json(clipped).substr(0, 40)));
  CHECK(to_json(again) == to_json(clipped));
  const std::string table = table_of({clipped, healthy});
  CHECK(table.find("| cause right first | at least 90% | 1 of 1 (100%) | met |") != std::string::npos);
  CHECK(table.find("| false alarms on healthy runs | at most 2% | 0 of 1 (0%) | met |") != std::string::npos);
}
