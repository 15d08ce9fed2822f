// Results of each sample of the test set: right sums, kept by files and resumes, unseen by observers.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/folder.h>
#include <gradual/lab/lab.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

namespace {

double sum(const std::vector<float>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

bool same(const lab::SampleScores& a, const lab::SampleScores& b) {
  return a.metric == b.metric && a.better == b.better && a.sample == b.sample && a.counted == b.counted &&
         a.loss == b.loss && a.score == b.score;
}

struct Counter : Observer {
  int ops = 0;
  void before(const OpCall&, const CallRecord&) override { ++ops; }
};

}  // namespace

TEST_CASE("the samples of a run sum to its accuracy and loss") {
  const auto results = lab::compare(mlp, small_digits(), recipes({"fp32", "mxfp4"}), "", {.epochs = 2, .batch = 32});
  for (const lab::Result& r : results) {
    REQUIRE(r.samples.size() == 40);
    CHECK(r.samples.metric == "accuracy");
    CHECK(r.samples.better == lab::Direction::higher);
    CHECK(sum(r.samples.counted) == 40);
    CHECK(sum(r.samples.score) / 40 == doctest::Approx(r.test_accuracy).epsilon(1e-12));
    CHECK(sum(r.samples.loss) / 40 == doctest::Approx(r.test_loss).epsilon(1e-6));
  }
  CHECK(results[0].samples.sample == results[1].samples.sample);
  CHECK(results[0].samples.loss != results[1].samples.loss);
}

TEST_CASE("a window of text is one sample, and targets that do not count are left out") {
  lab::SampleScores scores;
  const Tensor logits = from_data(std::vector<float>{9, 0, 0, 9, 9, 0, 0, 9}, {2, 2, 2});
  const data::Batch batch{zeros({2, 2}), from_data(std::vector<std::int64_t>{0, 1, 1, -100}, {2, 2})};
  lab::add_samples(scores, logits, batch);
  CHECK(scores.counted == std::vector<float>{2, 1});
  CHECK(scores.score == std::vector<float>{2, 0});
  CHECK(scores.loss[0] == doctest::Approx(2 * std::log1p(std::exp(-9.0))).epsilon(1e-3));
  CHECK(scores.loss[1] == doctest::Approx(9 + std::log1p(std::exp(-9.0))));
}

TEST_CASE("a sample has the same name in the test sets of other seeds") {
  const data::Dataset all = data::digits();
  const auto names = [&](std::uint64_t seed) {
    const data::Dataset test = data::split(all, 1437, seed).test;
    std::set<std::uint32_t> found;
    for (std::int64_t i = 0; i < test.size(); ++i) found.insert(lab::content_name(test.inputs, test.targets, i));
    return found;
  };
  const std::set<std::uint32_t> first = names(0);
  const std::set<std::uint32_t> second = names(1);
  std::vector<std::uint32_t> both;
  std::ranges::set_intersection(first, second, std::back_inserter(both));
  CHECK(first.size() == 360);
  CHECK(both.size() > 40);  // 72 are expected
  CHECK(both.size() < 110);
}

TEST_CASE("no observer sees how samples are scored") {
  Counter counter;
  const ObserverScope scope(counter);
  const Tensor logits = zeros({2, 3});
  const data::Batch batch{zeros({2, 2}), from_data(std::vector<std::int64_t>{0, 1}, {2})};
  const int before = counter.ops;
  lab::SampleScores scores;
  lab::add_samples(scores, logits, batch);
  CHECK(counter.ops == before);
  CHECK(scores.size() == 2);
}

TEST_CASE("a folder keeps the samples, a resume takes them, and the page goes without") {
  const Folder folder("samples");
  lab::Options o{.epochs = 2, .batch = 32};
  int asked = 0;
  o.stop = [&] { return ++asked == 13; };  // in the second run
  const auto whole = lab::compare(mlp, small_digits(), recipes({"fp32", "bf16-pure"}), "", {.epochs = 2, .batch = 32});
  const auto stopped = lab::compare(mlp, small_digits(), recipes({"fp32", "bf16-pure"}), folder.path.string(), o);
  CHECK(stopped[1].samples.empty());
  o.stop = {};
  o.resume = true;
  lab::compare(mlp, small_digits(), recipes({"fp32", "bf16-pure"}), folder.path.string(), o);
  const auto read = lab::load_results(folder.path.string());
  REQUIRE(read.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) CHECK(same(read[i].samples, whole[i].samples));
  CHECK(folder.read("report.html").find("\"samples\":") == std::string::npos);
  CHECK(folder.read("results.json").find("\"samples\":") == std::string::npos);
}

TEST_CASE("samples that were edited are refused by name") {
  const auto results = lab::compare(mlp, small_digits(), recipes({"fp32"}), "", {.epochs = 1, .batch = 32});
  const auto said = [&](const char* field, const nlohmann::json& value) {
    auto edited = nlohmann::json::parse(lab::results_json(results, true));
    edited["runs"][0]["samples"][field] = value;
    return message([&] { lab::results_from_json(edited.dump(), "results.json"); });
  };
  CHECK(said("better", "sideways").ends_with("samples.better is \"sideways\"; allowed are higher, lower"));
  CHECK(said("loss", "AAAA").ends_with("samples.loss numbers of 4 bytes in base64 are expected"));
  CHECK(said("loss", "AAA").ends_with("samples.loss numbers in base64 are expected"));
  CHECK(said("loss", "AA A").ends_with("samples.loss numbers in base64 are expected"));
  CHECK(said("score", "AAAAAA==").ends_with("samples.score has 1 values; its samples are 40"));
  auto earlier = nlohmann::json::parse(lab::results_json(results, true));
  earlier["runs"][0].erase("samples");
  CHECK(lab::results_from_json(earlier.dump(), "results.json")[0].samples.empty());
}
