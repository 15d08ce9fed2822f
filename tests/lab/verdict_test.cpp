// Verdicts, and what becomes of findings when a run is stopped, resumed, or cannot be explained.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/gradual.h>
#include <gradual/lab/verdict.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "support/files.h"
#include "support/simulated_runs.h"

using namespace gradual;
namespace fs = std::filesystem;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::shared_ptr<nn::Module> mlp() { return lab::make_mlp(64, 10); }
data::Split digits() { return data::split(data::digits(), 1437, 0); }

// A run that learned.
lab::Result run(const std::string& recipe, int seed, double accuracy) {
  lab::Result r{.recipe = recipe, .model = "m", .data = "d", .seed = seed, .epochs = 1, .steps = 3};
  r.train_loss = 0.1;
  r.test_loss = 0.2;
  r.test_accuracy = accuracy;
  r.test_samples = 1000;
  r.status = lab::Status::ok;
  r.curve = {{0, 1, 2}, {2.3, 1, 0.1}, {1, 1, 1}, {false, false, false}, {kNaN, kNaN, kNaN}};
  return r;
}
lab::Result diverged(const std::string& recipe, int seed, const std::vector<double>& loss) {
  lab::Result r = run(recipe, seed, 0.1);
  r.status = lab::Status::diverged;
  r.curve.loss = loss;
  r.train_loss = kNaN;
  return r;
}
std::vector<std::string> verdicts(std::vector<lab::Result> results) {
  lab::judge(results);
  std::vector<std::string> all;
  for (const lab::Result& r : results) all.push_back(to_string(r.verdict));
  return all;
}
}  // namespace

TEST_CASE("the interval of two seeds is neither empty nor huge") {
  const auto half = [](std::vector<lab::Result> results) {
    lab::judge(results);
    return 100 * results.back().difference->half;
  };
  const auto two = [&](double first, double second) {
    return half({run("fp32", 0, 0.95), run("fp32", 1, 0.95), run("a", 0, 0.95 + first), run("a", 1, 0.95 + second)});
  };
  const double one = 100 * std::sqrt(2 * 2 * 0.95 * 0.05 / 1000);
  CHECK(half({run("fp32", 0, 0.95), run("a", 0, 0.95)}) == doctest::Approx(4.3027 * one).epsilon(0.001));
  CHECK(two(0.001, 0.001) == doctest::Approx(2.53).epsilon(0.01));  // the seeds' differences happen to be equal
  CHECK(two(-0.01, 0.01) > two(0.001, 0.001));
  CHECK(two(-0.01, 0.01) < 4);  // Student's t alone: 12.7 points
  CHECK(verdicts({run("fp32", 0, 0.95), run("fp32", 1, 0.95), run("a", 0, 0.85), run("a", 1, 0.86)})[2].starts_with(
      "worse by 9.5 ± "));
}

TEST_CASE("a seed whose fp32 diverges is no part of the comparison") {
  const auto all =
      verdicts({run("fp32", 0, 0.95), diverged("fp32", 1, {2.3, 2, kNaN}), run("a", 0, 0.95), run("a", 1, 0.95)});
  CHECK(all[2].starts_with("cannot tell yet: +0.0 ± "));
  CHECK(all[3].starts_with("matches: it learns, and fp32 diverged at step 2"));
}

TEST_CASE("all steps skipped is that, whatever the evaluation gives; a rising loss is no \"no learning\"") {
  lab::Result skipped = diverged("a", 0, {2.3, 2.3, 2.3});
  skipped.skipped_steps = 3;
  skipped.test_loss = kNaN;
  lab::Result rises = run("b", 0, 0.1);
  rises.train_loss = 9.1;
  lab::Result flat = run("c", 0, 0.1);
  flat.train_loss = 2.25;
  const auto all = verdicts({run("fp32", 0, 0.95), skipped, rises, flat});
  CHECK(all[1] == "mostly skipped: 3 of 3 steps");
  CHECK(all[2] == "loss rises from 2.3 to 9.1");
  CHECK(all[3] == "no learning");
}

TEST_CASE("paired samples decide where accuracies alone do not, and the loss counts") {
  gradual::test::Simulation equal({.discordant = 0.002, .spread = 0.02}, 1);
  gradual::test::Simulation costly({.loss_percent = 100, .discordant = 0.002, .spread = 0.02}, 1);
  std::vector<lab::Result> same;
  std::vector<lab::Result> twice;
  for (int seed = 0; seed < 3; ++seed) {
    equal.add_seed(same);
    costly.add_seed(twice);
  }
  CHECK(verdicts(same)[1].starts_with("matches fp32 ("));
  CHECK(verdicts(twice)[1].starts_with("worse loss: +"));
  for (lab::Result& r : same) r.samples = {};
  CHECK(verdicts(same)[1].starts_with("cannot tell yet"));
}

TEST_CASE("a match names skipped steps, losses that were not finite, a rise, a small scale and failed seeds") {
  gradual::test::Simulation equal({.discordant = 0.002, .spread = 0.02}, 1);
  std::vector<lab::Result> results;
  for (int seed = 0; seed < 3; ++seed) equal.add_seed(results);
  const auto judged = [&](auto change) {
    std::vector<lab::Result> changed = results;
    for (lab::Result& r : changed) {
      if (r.recipe == "fp32") continue;
      r.epochs = 3;
      r.steps = 6;
      r.train_loss = 0.1;
      r.curve = {{0, 1, 2, 3, 4, 5},
                 {2.3, 1, 0.2, 0.2, 0.1, 0.1},
                 {8, 8, 8, 8, 8, 8},
                 std::vector<bool>(6),
                 std::vector<double>(6, kNaN)};
      change(r);
    }
    lab::judge(changed);
    return changed[1].verdict;
  };
  CHECK(judged([](lab::Result&) {}).notes.empty());
  const lab::Verdict skipped = judged([](lab::Result& r) { r.skipped_steps = 2; });
  CHECK(skipped.kind == lab::VerdictKind::matches);
  CHECK(to_string(skipped).ends_with("), but 6 of 18 steps were skipped"));
  CHECK(to_string(judged([](lab::Result& r) {
          r.curve.loss[1] = kNaN;
        })).ends_with("but 3 of 18 training losses were not finite"));
  CHECK(to_string(judged([](lab::Result& r) {
          r.curve.loss[4] = 0.3;
          r.curve.loss[5] = 0.3;
          r.train_loss = 0.3;
        })).ends_with("but the training loss of the last epoch is 1.50 times that of the best one"));
  CHECK(to_string(judged([](lab::Result& r) {
          r.curve.scale[5] = 0x1p-16;
          r.final_scale = 0x1p-16;
        })).ends_with("but the loss scale fell to 2^-16"));
  const lab::Verdict failed = judged([](lab::Result& r) {
    if (r.seed == 2) r.status = lab::Status::diverged;
  });
  CHECK(to_string(failed).ends_with("but 1 of 3 seeds failed"));
}

TEST_CASE("\"cannot tell yet\" has no finding of unknown cause but of an Error, and is no alarm; others keep theirs") {
  const auto found = [](inspect::Cause cause) { return lab::Finding{.cause = cause, .sentence = "s"}; };
  std::vector<lab::Result> results = {run("fp32", 0, 0.95), run("open", 0, 0.90), run("worse", 0, 0.7)};
  for (lab::Result& r : results)
    if (r.recipe != "fp32") r.findings = {found(inspect::Cause::unknown), found(inspect::Cause::format_range)};
  lab::judge(results);
  CHECK(results[1].verdict.kind == lab::VerdictKind::undecided);
  CHECK(results[1].verdict.looks_worse);
  REQUIRE(results[1].findings.size() == 1);
  CHECK(results[1].findings[0].cause == inspect::Cause::format_range);
  CHECK(lab::is_alarm(results[1]));
  CHECK(results[2].verdict.kind == lab::VerdictKind::worse);
  REQUIRE(results[2].findings.size() == 2);
  CHECK(results[2].findings[0].cause == inspect::Cause::unknown);
  CHECK(lab::is_alarm(results[2]));
  results[1].findings.clear();
  lab::judge(results);
  CHECK_FALSE(lab::is_alarm(results[1]));
  results[1].findings = {found(inspect::Cause::unknown)};
  results[1].findings[0].source = lab::FindingSource::error;
  lab::judge(results);
  CHECK(results[1].findings.size() == 1);
}

TEST_CASE("to match an fp32 that is no better than a constant answer is no success; to be worse is still worse") {
  std::vector<lab::Result> results = {run("fp32", 0, 0.5), run("same", 0, 0.5), run("worse", 0, 0.3)};
  for (lab::Result& r : results) r.constant_metric = 0.5;
  const auto all = verdicts(results);
  CHECK(all[0] == "baseline, no learning");
  CHECK(all[1] == "not precision: fp32 does the same");
  CHECK(all[2].starts_with("worse by 20.0"));
}

TEST_CASE("a run that is better than an fp32 below a constant answer matches only if it is better than that") {
  std::vector<lab::Result> results = {run("fp32", 0, 0.3), run("also below", 0, 0.45), run("learns", 0, 0.9)};
  for (lab::Result& r : results) r.constant_metric = 0.5;
  const auto all = verdicts(results);
  CHECK(all[1] == "not precision: fp32 does the same");
  CHECK(all[2] == "matches: it learns, and fp32 learns nothing");
}

TEST_CASE("runs of fp32 are observed further for its first seed alone, or if they fail") {
  std::vector<lab::Result> results = {run("fp32", 0, 0.95), run("fp32", 1, 0.95),
                                      diverged("fp32", 2, {2.3, kNaN, kNaN})};
  lab::judge(results);
  CHECK(lab::may_have_to_explain(results[0]));
  CHECK_FALSE(lab::may_have_to_explain(results[1]));
  CHECK(lab::may_have_to_explain(results[2]));
}

TEST_CASE("a run that learns where fp32 fails has what fp32's run shows of the program, and nothing of precision") {
  std::vector<lab::Result> results = {diverged("fp32", 0, {2.3, 2, kNaN}), run("a", 0, 0.95)};
  results[0].findings = {{.cause = inspect::Cause::arithmetic, .sentence = "a log of 0"}};
  results[0].findings[0].precision = false;
  results[1].findings = {{.cause = inspect::Cause::clipping, .sentence = "s"}};
  lab::judge(results);
  CHECK(results[1].verdict.kind == lab::VerdictKind::matches);
  REQUIRE(results[1].findings.size() == 1);
  CHECK(results[1].findings[0].cause == inspect::Cause::arithmetic);
  // What another recipe's numbers need not do.
  for (const inspect::Cause cause : {inspect::Cause::learning_rate, inspect::Cause::small_rate,
                                     inspect::Cause::dead_units, inspect::Cause::labels}) {
    results[0].findings[0].cause = cause;
    lab::judge(results);
    CHECK(results[1].findings.empty());
  }
}

TEST_CASE("findings of fp32's run decide nothing in a later look, and explain nothing") {
  std::vector<lab::Result> results = {run("fp32", 0, 0.95), run("a", 0, 0.95)};
  results[0].findings = {{.cause = inspect::Cause::wrong_gradient, .sentence = "s", .precision = false}};
  lab::judge(results);
  CHECK_FALSE(lab::fails(results[1]));
  REQUIRE(results[1].findings.size() == 1);
  CHECK(results[0].findings[0].source == lab::FindingSource::run);
  CHECK(results[1].findings[0].source == lab::FindingSource::fp32);
  results = lab::results_from_json(lab::results_json(results, true), "file");
  for (int look = 0; look < 2; ++look) {
    results[1].test_accuracy = 0.7;
    lab::judge(results);
    CHECK(results[1].verdict.kind == lab::VerdictKind::worse);
    CHECK(results[1].findings.empty());
  }
}

TEST_CASE("where a verdict rests on a finding of the run's own, findings of fp32's run stand before it at every look") {
  std::vector<lab::Result> results = {run("fp32", 0, 0.5), run("a", 0, 0.3)};
  for (lab::Result& r : results) r.constant_metric = 0.5;
  results[0].findings = {{.cause = inspect::Cause::labels, .sentence = "s", .precision = false}};
  results[1].findings = {{.cause = inspect::Cause::bug, .sentence = "s", .precision = false}};
  for (int look = 0; look < 2; ++look) {
    lab::judge(results);
    CHECK(results[1].verdict.kind == lab::VerdictKind::not_precision);
    REQUIRE(results[1].findings.size() == 2);
    CHECK(results[1].findings[0].cause == inspect::Cause::labels);
    CHECK(results[1].findings[1].cause == inspect::Cause::bug);
  }
}

TEST_CASE("a run diverges at the step from which on no loss is finite") {
  const auto all =
      verdicts({run("fp32", 0, 0.95), diverged("a", 0, {kNaN, 2.3, kNaN}), diverged("b", 0, {2.3, kNaN, 1})});
  CHECK(all[1] == "diverged at step 2");
  CHECK(all[2] == "diverged in evaluation");
}

TEST_CASE("the first words of a verdict are those of the documented list") {
  lab::Result stopped = run("a", 0, kNaN);
  lab::Result skipped = run("b", 0, 0.5);
  lab::Result flat = run("c", 0, 0.1);
  lab::Result blamed = run("d", 0, 0.5);
  stopped.status = lab::Status::interrupted;
  skipped.skipped_steps = 2;
  flat.train_loss = 2.3;
  blamed.findings = {{.cause = inspect::Cause::bug, .precision = false}};
  const std::vector<lab::Result> results = {run("fp32", 0, 0.95),
                                            stopped,
                                            skipped,
                                            flat,
                                            blamed,
                                            run("e", 0, 0.8),
                                            run("f", 0, 0.95),
                                            diverged("g", 0, {2.3, kNaN, kNaN})};
  const char* const words[] = {"baseline",      "interrupted", "mostly skipped",  "no learning",
                               "not precision", "worse",       "cannot tell yet", "diverged"};
  const auto all = verdicts(results);
  for (std::size_t i = 0; i < all.size(); ++i) CHECK_MESSAGE(all[i].starts_with(words[i]), all[i]);
  CHECK(verdicts({run("a", 0, 0.95)})[0] == "interrupted: fp32 was not trained");
  CHECK(verdicts({diverged("a", 0, {2.3, kNaN, kNaN})})[0] == "diverged at step 1");
}

TEST_CASE("without fp32 among the recipes it is trained for the verdicts, and left out of the results") {
  int runs = 0;
  int most = 0;
  lab::Options o{.epochs = 3, .progress = [&](const lab::Progress& p) {
                   runs += p.finished;
                   most = std::max(most, p.runs);
                 }};
  const auto results = lab::compare(mlp, digits(), {amp::recipe("amp-bf16"), amp::recipe("fp16-pure")}, "", o);
  REQUIRE(results.size() == 2);
  CHECK(to_string(results[0].verdict).starts_with("cannot tell yet"));  // one seed
  CHECK(to_string(results[1].verdict) == "diverged at step 1");
  REQUIRE(!results[1].findings.empty());
  CHECK(results[1].findings[0].cause == inspect::Cause::adam_eps);
  CHECK(runs == 3);
  CHECK(most == 3);
}

TEST_CASE("more seeds are trained until it is decided, of the undecided recipes and fp32 alone") {
  const ::test::TemporaryFolder temporary;
  const std::string folder = temporary / "out";
  const std::vector list = {amp::recipe("fp16-pure"), amp::recipe("e5m2"), amp::recipe("fp32")};
  lab::Options o{.epochs = 1, .seeds = 2, .until = 4};
  const auto seeds_of = [](const std::vector<lab::Result>& results, const std::string& recipe) {
    return std::ranges::count(results, recipe, &lab::Result::recipe);
  };
  const auto results = lab::compare(mlp, digits(), list, folder, o);
  CHECK(seeds_of(results, "fp16-pure") == 2);
  CHECK(seeds_of(results, "e5m2") > 2);  // two seeds do not tell
  CHECK(seeds_of(results, "fp32") == seeds_of(results, "e5m2"));
  CHECK(std::ranges::is_sorted(results, {}, [&](const lab::Result& r) {
    return std::ranges::find(list, r.recipe, &amp::Recipe::name) - list.begin();
  }));
  REQUIRE(results[2].difference.has_value());
  CHECK(results[2].difference->error == doctest::Approx(0.05 / 3));  // looks after 2, 3 and 4
  int steps = 0;
  o.resume = true;
  o.progress = [&steps](const lab::Progress&) { ++steps; };
  const auto again = lab::compare(mlp, digits(), list, folder, o);
  CHECK(steps == 0);
  REQUIRE(again.size() == results.size());
  for (std::size_t i = 0; i < again.size(); ++i) CHECK(to_string(again[i].verdict) == to_string(results[i].verdict));
}

TEST_CASE("a run of which one cannot tell is explained when more seeds show that it is worse") {
  const std::vector list = {amp::recipe("fp32"), amp::recipe("mxfp4")};
  // Wide margins: at the first look nothing looks worse.
  lab::Options o{.epochs = 1, .seeds = 1, .margin = 6, .loss_margin = 1000};
  const auto first = lab::compare(mlp, digits(), list, "", o).back();
  CHECK(first.verdict.kind == lab::VerdictKind::undecided);
  CHECK_FALSE(lab::fails(first));
  CHECK(first.findings.empty());
  const ::test::TemporaryFolder temporary;
  const std::string folder = temporary / "out";
  o.until = 5;
  for (const lab::Result& r : lab::compare(mlp, digits(), list, folder, o)) {
    CHECK(!fs::exists(fmt::format("{}/checkpoints/{}-seed{}.safetensors", folder, r.recipe, r.seed)));
    if (r.recipe == "fp32") continue;
    CHECK_MESSAGE(r.verdict.kind == lab::VerdictKind::worse, to_string(r.verdict));
    CHECK_FALSE(r.findings.empty());
  }
}

TEST_CASE("a finished run is explained when a later call with more seeds shows that it is worse") {
  const std::vector list = {amp::recipe("fp32"), amp::recipe("mxfp4")};
  const ::test::TemporaryFolder temporary;
  lab::Options o{.epochs = 1, .seeds = 1, .margin = 6, .loss_margin = 1000};
  CHECK(lab::compare(mlp, digits(), list, temporary / "out", o).back().findings.empty());
  o.resume = true;
  o.seeds = 5;
  const auto more = lab::compare(mlp, digits(), list, temporary / "out", o);
  o.resume = false;
  const auto whole = lab::compare(mlp, digits(), list, "", o);
  REQUIRE(more.size() == whole.size());
  for (std::size_t i = 0; i < more.size(); ++i) {
    CHECK(more[i].findings.empty() == (more[i].recipe == "fp32"));
    REQUIRE(more[i].findings.size() == whole[i].findings.size());
    if (more[i].findings.empty()) continue;
    CHECK(more[i].findings[0].sentence == whole[i].findings[0].sentence);
    CHECK(more[i].findings[0].undone == whole[i].findings[0].undone);
  }
}

TEST_CASE("a stop while a run is explained leaves it to --resume") {
  const ::test::TemporaryFolder temporary;
  const std::string folder = temporary / "out";
  auto list = std::vector{amp::recipe("fp32"), amp::recipe("fp16-master")};
  // diverges after some steps
  list[1].name = "state";
  list[1].optimizer_state = DType::f16;
  const auto compare = [&](const std::string& out, bool resume, int stop_at, int& asked) {
    lab::Options o{.epochs = 2, .resume = resume};
    o.stop = [&asked, stop_at] { return ++asked >= stop_at; };
    return lab::compare(mlp, digits(), list, out, o);
  };
  constexpr int kNever = std::numeric_limits<int>::max();
  int all = 0;
  int asked = 0;
  const auto whole = compare("", false, kNever, all);
  REQUIRE(!whole[1].findings.empty());
  const auto stopped = compare(folder, false, all - 1, asked = 0);  // in the last replay
  CHECK(to_string(stopped[1].verdict) == "interrupted");
  CHECK(stopped[1].findings.empty());
  CHECK(fs::exists(folder + "/checkpoints/state-seed0.safetensors"));
  const auto resumed = compare(folder, true, kNever, asked = 0);
  CHECK(to_string(resumed[1].verdict) == to_string(whole[1].verdict));
  REQUIRE(resumed[1].findings.size() == whole[1].findings.size());
  CHECK(resumed[1].findings[0].sentence == whole[1].findings[0].sentence);
  CHECK(resumed[1].curve.loss.size() == whole[1].curve.loss.size());
  CHECK(!fs::exists(folder + "/checkpoints/state-seed0.safetensors"));
}

TEST_CASE("a stop before fp32 is trained leaves verdicts and findings to --resume") {
  const ::test::TemporaryFolder temporary;
  const std::string folder = temporary / "out";
  const std::vector list = {amp::recipe("amp-bf16"), amp::recipe("fp16-pure")};
  bool stop = false;
  lab::Options o{.epochs = 2};
  o.progress = [&stop](const lab::Progress& p) { stop = stop || p.recipe.name == "fp32"; };
  o.stop = [&stop] { return stop; };
  const auto stopped = lab::compare(mlp, digits(), list, folder, o);
  REQUIRE(stopped.size() == 2);
  CHECK(to_string(stopped[0].verdict) == "interrupted: fp32 was not trained");
  CHECK(to_string(stopped[1].verdict) == "diverged at step 1");
  CHECK(stopped[1].findings.empty());
  o.progress = {};
  o.stop = {};
  o.resume = true;
  const auto resumed = lab::compare(mlp, digits(), list, folder, o);
  CHECK(to_string(resumed[0].verdict).starts_with("cannot tell yet"));
  CHECK(resumed[0].curve.loss == stopped[0].curve.loss);
  REQUIRE(!resumed[1].findings.empty());
  CHECK(resumed[1].findings[0].cause == inspect::Cause::adam_eps);
  // What is known is not trained again, not even fp32.
  int steps = 0;
  o.progress = [&steps](const lab::Progress&) { ++steps; };
  CHECK(lab::compare(mlp, digits(), list, folder, o)[1].findings.size() == resumed[1].findings.size());
  CHECK(steps == 0);
}

TEST_CASE("a run that cannot be explained keeps its result") {
  int made = 0;
  const auto once = [&made] {  // for the check of the recipes, and one for each run
    if (++made > 3) throw Error("no more models");
    return mlp();
  };
  const auto results = lab::compare(once, digits(), {amp::recipe("fp32"), amp::recipe("fp16-pure")}, "", {.epochs = 1});
  REQUIRE(results.size() == 2);
  CHECK(to_string(results[1].verdict) == "diverged at step 1");
  REQUIRE(results[1].findings.size() == 1);
  CHECK(results[1].findings[0].cause == inspect::Cause::unknown);
  CHECK(results[1].findings[0].sentence.find("no more models") != std::string::npos);
}
