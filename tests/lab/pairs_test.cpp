// Any two recipes of a comparison, and the tables for other programs.
#include <doctest/doctest.h>
#include <gradual/lab/decision.h>
#include <gradual/lab/pairs.h>
#include <gradual/lab/result.h>
#include <gradual/lab/statistics.h>
#include <gradual/lab/tables.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "comparison.h"
#include "ended_run.h"

using namespace gradual;
using namespace gradual::lab;
using gradual::test::ended_run;

namespace {

const std::vector<Result> kRuns = {ended_run("fp32", 0, 0.98, 0.10), ended_run("fp32", 1, 0.97, 0.12),
                                   ended_run("a_1", 0, 0.95, 0.20),  ended_run("a_1", 1, 0.98, 0.25),
                                   ended_run("b", 0, 0.50, 0.90),    ended_run("b", 1, 0.55, 0.95)};

const TextTable& table_named(const std::vector<TextTable>& tables, std::string_view name) {
  const auto found = std::ranges::find(tables, name, &TextTable::name);
  REQUIRE(found != tables.end());
  return *found;
}

}  // namespace

TEST_CASE("pairs: each pair once, with the paired interval, the share of seeds and a correction for their number") {
  const std::vector<RecipePair> pairs = recipe_pairs(kRuns);
  REQUIRE(pairs.size() == 3);
  CHECK(pairs[0].first == "fp32");
  CHECK(pairs[0].second == "a_1");
  CHECK(pairs[2].first == "a_1");
  CHECK(pairs[2].second == "b");
  const Pairs with_fp32 = pairs_with_fp32(kRuns, {}, "b");
  const Difference b = metric_difference(with_fp32);
  CHECK(pairs[1].metric.mean == doctest::Approx(-b.mean));
  CHECK(pairs[1].metric.half == doctest::Approx(b.half).epsilon(0.2));  // the variance by shares is of the pair's runs
  CHECK(pairs[1].metric.mean == doctest::Approx(0.45));
  CHECK(pairs[0].better == 0.5);  // in one seed of two
  CHECK(pairs[1].better == 1);
  for (const RecipePair& p : pairs) CHECK(p.half_together > p.metric.half);
  CHECK(pairs[1].holds);
  CHECK_FALSE(pairs[0].holds);
  std::vector<double> chances;
  for (const RecipePair& p : pairs) chances.push_back(p.p);
  const std::vector<bool> holds = hold_together(chances, 0.05);
  for (std::size_t i = 0; i < pairs.size(); ++i) CHECK(pairs[i].holds == holds[i]);
  std::vector<Result> diverged = kRuns;
  diverged[4].status = Status::diverged;
  diverged[5].status = Status::diverged;
  CHECK(recipe_pairs(diverged).size() == 1);
}

TEST_CASE("pairs: a metric of which less is better counts seeds the other way") {
  std::vector<Result> runs = kRuns;
  for (Result& r : runs) {
    r.metric = {"rmse", "", Direction::lower};
    r.test_metric = r.test_loss;
    r.test_accuracy = NAN;
  }
  const std::vector<RecipePair> pairs = recipe_pairs(runs);
  CHECK(pairs[1].better == 1);
  CHECK(pairs[1].metric.mean == doctest::Approx(-0.815));
}

TEST_CASE("pairs: the files of a comparison have them") {
  const gradual::test::Folder folder("pairs");
  compare([] { return gradual::test::mlp(); }, gradual::test::small_digits(),
          gradual::test::recipes({"fp32", "e3m2", "e5m2"}), folder.path.string(), {.epochs = 1, .seeds = 2});
  CHECK(folder.read("results.json").find("\"share_of_seeds_better\"") != std::string::npos);
  CHECK(folder.read("report.html").find("\"half_interval_together\"") != std::string::npos);
  const std::string csv = folder.read("pairs.csv");
  CHECK(csv.find("\nfp32,e3m2,accuracy,2,") != std::string::npos);
  CHECK(csv.find("\ne3m2,e5m2,accuracy,2,") != std::string::npos);
}

TEST_CASE("tables: a matrix of pairs is antisymmetric; LaTeX has its marks escaped and as many columns everywhere") {
  const std::vector<TextTable> tables = tables_of(kRuns);
  const TextTable& pairs = table_named(tables, "pairs");
  CHECK(pairs.columns == std::vector<std::string>{"recipe", "fp32", "a_1", "b"});
  CHECK(pairs.rows[0][1].empty());
  CHECK(pairs.rows[0][3].starts_with("+45.00"));
  CHECK(pairs.rows[2][1].starts_with("-45.00"));
  CHECK(pairs.rows[2][1].ends_with("*"));
  CHECK(pairs.rows[0][3].substr(1) == pairs.rows[2][1].substr(1));
  for (const TextTable& t : tables) {
    CAPTURE(t.name);
    for (const auto& row : t.rows) CHECK(row.size() == t.columns.size());
    const std::string text = to_latex(t);
    CHECK(text.find("\\toprule") < text.find("\\midrule"));
    CHECK(text.find("\\midrule") < text.find("\\bottomrule"));
    CHECK(text.find("a_1") == std::string::npos);
    CHECK(text.find("±") == std::string::npos);
    CHECK(std::count(text.begin(), text.end(), '{') == std::count(text.begin(), text.end(), '}'));
  }
  CHECK(to_latex(pairs).find("a\\_1 & ") != std::string::npos);
  CHECK(to_latex(table_named(tables, "results")).find("underflow [\\%]") != std::string::npos);
  const TextTable marks{.name = "x", .columns = {"a,b"}, .rows = {{"say \"no\" & 5%"}}};
  CHECK(to_csv(marks) == "\"a,b\"\n\"say \"\"no\"\" & 5%\"\n");
  CHECK(to_latex(marks).find("say \"no\" \\& 5\\%") != std::string::npos);
}
