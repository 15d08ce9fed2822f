// Verdicts as values: their sentences, and files of results, old ones too.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/verdict.h>

#include <nlohmann/json.hpp>

#include "../support/files.h"

using namespace gradual;
using lab::Outcome, lab::Verdict, lab::VerdictKind;

namespace {

constexpr Outcome kDiverged{.kind = VerdictKind::diverged, .step = 3};
constexpr Outcome kSkipped{.kind = VerdictKind::mostly_skipped, .skipped = 5, .steps = 8};
constexpr Outcome kNoLearning{.kind = VerdictKind::no_learning};

std::string text(const Verdict& v) { return to_string(v); }

lab::Result result_with(const Verdict& verdict) {
  lab::Result r{.recipe = "a", .model = "m", .data = "d"};
  r.status = lab::Status::ok;
  r.verdict = verdict;
  return r;
}

// results.json of one run as an earlier version wrote it.
std::string earlier_file(const std::string& sentence) {
  nlohmann::ordered_json file = nlohmann::ordered_json::parse(lab::results_json({result_with({})}, false));
  file["runs"][0]["verdict"] = sentence;
  file["runs"][0].erase("judgement");
  return file.dump();
}

}  // namespace

TEST_CASE("a verdict's sentence says the facts it has") {
  CHECK(text({}) == "");
  CHECK(text({{.kind = VerdictKind::baseline}}) == "baseline");
  CHECK(text({{.kind = VerdictKind::baseline}, kDiverged}) == "baseline, diverged at step 3");
  CHECK(text({{.kind = VerdictKind::baseline}, kNoLearning}) == "baseline, no learning");
  CHECK(text({{.kind = VerdictKind::matches, .points = -0.26, .interval = 1.64}}) ==
        "matches fp32 (-0.3 points, within 1.6)");
  CHECK(text({{.kind = VerdictKind::matches, .points = -0.26, .interval = 0.04, .loss = 2.4, .loss_interval = 3}}) ==
        "matches fp32 (-0.3 ± 0.0 points, loss +2 ± 3%)");
  const Outcome open{.kind = VerdictKind::undecided, .points = -1, .interval = 2, .loss = 20, .loss_interval = 30};
  CHECK(text({open}) == "cannot tell yet: -1.0 ± 2.0 points, loss +20 ± 30%; more test samples would");
  Outcome nine = open;
  nine.needed = 9;
  CHECK(text({nine}) == "cannot tell yet: -1.0 ± 2.0 points, loss +20 ± 30%; about 9 seeds would");
  CHECK(text({{.kind = VerdictKind::worse_loss, .points = 0.1, .interval = 1, .loss = 42, .loss_interval = 10}}) ==
        "worse loss: +42 ± 10%, accuracy +0.1 ± 1.0 points");
  CHECK(text({{.kind = VerdictKind::better, .points = 11.4, .interval = 6.8, .loss = -30, .loss_interval = 10}}) ==
        "better: +11.4 ± 6.8 points, loss -30 ± 10%");
  CHECK(text({{.kind = VerdictKind::rising_loss, .low = 2.3, .high = 9.06}}) == "loss rises from 2.3 to 9.06");
  CHECK(text({{.kind = VerdictKind::matches}, {}, kNoLearning}) == "matches: it learns, and fp32 learns nothing");
  CHECK(text({{.kind = VerdictKind::worse, .points = -2.5, .interval = 1}}) == "worse by 2.5 ± 1.0 points");
  CHECK(text({kSkipped}) == "mostly skipped: 5 of 8 steps");
  CHECK(text({kDiverged}) == "diverged at step 3");
  CHECK(text({{.kind = VerdictKind::diverged}}) == "diverged in evaluation");
  CHECK(text({{.kind = VerdictKind::not_precision}}) == "not precision: fp32 does the same");
  CHECK(text({{.kind = VerdictKind::not_precision}, kSkipped}) == "not precision: mostly skipped: 5 of 8 steps");
  CHECK(text({{.kind = VerdictKind::not_precision}, kDiverged, kNoLearning}) ==
        "not precision: diverged at step 3, and fp32 learns nothing");
  CHECK(text({{.kind = VerdictKind::interrupted}}) == "interrupted");
  CHECK(text({{.kind = VerdictKind::interrupted}, {}, Outcome{.kind = VerdictKind::interrupted}}) ==
        "interrupted: fp32 was not trained");
  CHECK(lab::brief({{.kind = VerdictKind::worse, .points = -2.5}}) == "worse");
  CHECK(lab::brief({kDiverged}) == "diverged at step 3");
}

TEST_CASE("a baseline that fails has something to explain, one that learns has not") {
  CHECK(!Verdict{{.kind = VerdictKind::baseline}}.fails());
  CHECK(Verdict{{.kind = VerdictKind::baseline}, kNoLearning}.fails());
  CHECK(!Verdict{{.kind = VerdictKind::matches}}.fails());
  CHECK(!Verdict{{.kind = VerdictKind::interrupted}}.fails());
  CHECK(Verdict{kDiverged}.fails());
  CHECK(!Verdict{{.kind = VerdictKind::undecided}}.fails());
  CHECK(Verdict{{.kind = VerdictKind::undecided, .looks_worse = true}}.fails());
}

TEST_CASE("what an answer has beside it is named, explained, and kept in files") {
  Verdict v{{.kind = VerdictKind::matches, .points = 0, .interval = 0.2, .loss = 1, .loss_interval = 2, .p = 0.001}};
  v.notes = {{lab::NoteKind::skipped_steps, 32, 69}, {lab::NoteKind::small_scale, -16, 0}};
  CHECK(
      text(v) ==
      "matches fp32 (+0.0 ± 0.2 points, loss +1 ± 2%), but 32 of 69 steps were skipped, the loss scale fell to 2^-16");
  CHECK(lab::brief(v) == "matches, but");
  CHECK(v.fails());
  const Verdict read = lab::results_from_json(lab::results_json({result_with(v)}, false), "file").at(0).verdict;
  CHECK(read.notes == v.notes);
  CHECK(read.loss == 1);
  CHECK(read.p == 0.001);
  CHECK(text(read) == text(v));
  for (const lab::NoteInfo& info : lab::kNoteInfos)
    for (const std::string_view one : {info.name, info.sentence, info.meaning}) CHECK(!one.empty());
}

TEST_CASE("results.json has a verdict's facts beside its sentence, and gives them back") {
  const Verdict made{{.kind = VerdictKind::not_precision}, kDiverged, kSkipped};
  const std::string file = lab::results_json({result_with(made)}, false);
  const auto run = nlohmann::json::parse(file)["runs"][0];
  CHECK(run["verdict"] == to_string(made));
  CHECK(run["judgement"]["kind"] == "not precision");
  CHECK(run["judgement"]["fails"] == true);
  CHECK(run["judgement"]["tone"] == "bad");
  CHECK(run["judgement"]["points"].is_null());
  CHECK(run["judgement"]["own"]["kind"] == "diverged");
  CHECK(run["judgement"]["own"]["step"] == 3);
  CHECK(run["judgement"]["fp32"]["skipped"] == 5);
  const Verdict read = lab::results_from_json(file, "file").at(0).verdict;
  CHECK(read.kind == made.kind);
  CHECK(read.own->step == 3);
  CHECK(read.fp32->steps == 8);
  CHECK(to_string(read) == to_string(made));
}

TEST_CASE("results.json has the role and the operands of a finding; a file of an earlier version has none") {
  lab::Result result = result_with({{.kind = VerdictKind::no_learning}});
  lab::Finding finding{.cause = inspect::Cause::clipping, .role = inspect::NumberRole::weight_gradient};
  finding.operands = {"weight_gradient"};
  result.findings = {finding};
  auto file = nlohmann::json::parse(lab::results_json({result}, false));
  auto& written = file["runs"][0]["findings"][0];
  CHECK(written["role"] == "weight gradient");
  CHECK(written["operands"] == nlohmann::json::array({"weight_gradient"}));
  const lab::Finding read = lab::results_from_json(file.dump(), "file").at(0).findings.at(0);
  CHECK(read.role == finding.role);
  CHECK(read.operands == finding.operands);
  written.erase("role");
  written.erase("operands");
  const lab::Finding earlier = lab::results_from_json(file.dump(), "file").at(0).findings.at(0);
  CHECK(earlier.role == inspect::NumberRole::none);
  CHECK(earlier.operands.empty());
}

TEST_CASE("a file of an earlier version keeps its sentences, and the kind is read from the first words") {
  const std::pair<const char*, VerdictKind> sentences[] = {
      {"matches fp32 (+0.1 points, within 1.6)", VerdictKind::matches},
      {"diverged at step 12", VerdictKind::diverged},
      {"not precision: fp32 does the same", VerdictKind::not_precision},
      {"no learning", VerdictKind::no_learning},
      {"", VerdictKind::unjudged}};
  for (const auto& [sentence, kind] : sentences) {
    CAPTURE(sentence);
    const lab::Result read = lab::results_from_json(earlier_file(sentence), "file").at(0);
    CHECK(read.verdict.kind == kind);
    CHECK(to_string(read.verdict) == sentence);
    const lab::Result again = lab::results_from_json(lab::results_json({read}, false), "file").at(0);
    CHECK(again.verdict.kind == kind);
    CHECK(to_string(again.verdict) == sentence);
  }
}

TEST_CASE("an unknown name in a file is an Error that lists the names") {
  auto file = nlohmann::ordered_json::parse(lab::results_json({result_with({kDiverged})}, false));
  file["runs"][0]["status"] = "sideways";
  const std::string message = test::message_of([&] { lab::results_from_json(file.dump(), "file"); });
  CHECK(message.find("is \"sideways\"; allowed are ok, all skipped, diverged, interrupted") != std::string::npos);
}
