// A sweep's file, its parts, and what its results are made of.
#include <doctest/doctest.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/sweep.h>

#include <cmath>
#include <nlohmann/json.hpp>

using namespace gradual;
using namespace gradual::lab;

namespace {

const char* const kFile = R"({
  "recipe": "mxfp4",
  "options": {"model": "mlp", "epochs": 1},
  "factors": {
    "lr": [0.001, 0.002],
    "rule": {"floor": {}, "rceil": {"recipe": {"quantization": {"forward_x": {"scaling": {"rule": "rceil"}}}}}},
    "start": {"mxfp4": {}, "mxfp8": {"recipe": "mxfp8", "options": {"batch": 32}}}
  }
})";

std::string message(const std::string& text) {
  try {
    sweep_from_json(text, "s.json");
  } catch (const Error& e) { return e.what(); }
  return "none";
}

Result run(const std::string& recipe, std::int64_t seed, double accuracy) {
  Result r;
  r.recipe = recipe;
  r.seed = seed;
  r.test_loss = 1 - accuracy;
  r.test_accuracy = accuracy;
  return r;
}

}  // namespace

TEST_CASE("combinations with the same options are one part; recipes are edited in order") {
  const Sweep sweep = sweep_from_json(kFile, "s.json");
  const std::vector<SweepPart> parts = parts_of(sweep);
  REQUIRE(parts.size() == 4);
  CHECK(parts[0].options == SweepOptions{{"model", "mlp"}, {"epochs", "1"}, {"lr", "0.001"}});
  CHECK(parts[1].options == SweepOptions{{"model", "mlp"}, {"epochs", "1"}, {"lr", "0.001"}, {"batch", "32"}});
  CHECK(parts[0].combinations == std::vector<std::size_t>{0, 2});
  CHECK(parts[3].combinations == std::vector<std::size_t>{5, 7});
  CHECK(parts[0].recipes[1].name == "rule=rceil+start=mxfp4");
  const amp::Recipe edited = recipe_of(sweep, 3);
  const amp::Recipe mxfp8 = amp::recipe("mxfp8");
  CHECK(edited.quantization->forward_x->format == mxfp8.quantization->forward_x->format);
  CHECK(!(edited.quantization->forward_x == mxfp8.quantization->forward_x));
  CHECK(edited.quantization->forward_w == mxfp8.quantization->forward_w);
}

TEST_CASE("an object of another kind replaces the scaling; null takes a field back to its default") {
  const Sweep sweep = sweep_from_json(R"({"recipe": "mxfp4", "factors": {"s": {
      "block": {}, "tensor": {"recipe": {"quantization": {"forward_x": {"scaling": {"kind": "tensor"}}}}},
      "none": {"recipe": {"quantization": {"forward_x": null}}}}}})",
                                      "s.json");
  CHECK(std::holds_alternative<TensorScale>(recipe_of(sweep, 1).quantization->forward_x->scaling));
  CHECK(!recipe_of(sweep, 2).quantization->forward_x);
}

TEST_CASE("a level's option replaces that of the sweep; numbers are short; true is an option without a value") {
  const Sweep sweep = sweep_from_json(R"({"options": {"lr": 1, "sync": true}, "factors": {"lr": [1e9, 0.001]}})", "s");
  CHECK(parts_of(sweep)[0].options == SweepOptions{{"lr", "1000000000"}, {"sync", ""}});
  CHECK(sweep.factors[0].levels[1].name == "0.001");
}

TEST_CASE("files that are no sweep say where and what is allowed") {
  CHECK(message("{").find("s.json: not JSON") == 0);
  CHECK(message("{}") == "s.json: \"factors\" is missing");
  CHECK(message(R"({"factor": {}})").find("unknown key \"factor\"") != std::string::npos);
  CHECK(message(R"({"factors": {"lr": [1]}})") == "s.json, factors, lr has 1 level; at least 2 are needed");
  CHECK(message(R"({"factors": {"lr": [1, 1]}})") == "s.json, factors, lr has the level \"1\" twice");
  CHECK(message(R"({"factors": {"x": {"a": {}, "b": {}}}})") ==
        "s.json, factors, x: the levels \"a\" and \"b\" are the same");
  CHECK(message(R"({"factors": {"x": {"a": {}, "b": {"recipe": "mxpf4"}}}})").find("mxfp4") != std::string::npos);
  CHECK(message(R"({"factors": {"x": {"a": {}, "b": {"recipe": {"mdoe": 1}}}}})").find("unknown key \"mdoe\"") !=
        std::string::npos);
  CHECK(message(R"({"factors": {"x": {"a": {}, "b": {"recipe": {"name": "n"}}}}})").find("\"name\" is not edited") !=
        std::string::npos);
  CHECK(message(R"({"factors": {"seeds": [1, 2]}})").find("seeds are no factor") != std::string::npos);
  CHECK(message(R"({"factors": {"out": ["a", "b"]}})").find("a sweep has no option") != std::string::npos);
  CHECK(message(R"({"factors": {"x": {"a": {}, "b": {"recipe": "mxfp8"}}, "y": {"a": {}, "b": {"recipe": "fp32"}}}})")
            .find("2 factors name recipes") != std::string::npos);
}

TEST_CASE("values are the metric or the loss by seed; the worst finite one stands for one that is not finite") {
  const Sweep sweep = sweep_from_json(R"({"factors": {"lr": [1, 2]}})", "s.json");
  std::vector<std::vector<Result>> results = {{run("fp32", 1, 0.5), run("fp32", 0, 0.75)},
                                              {run("fp32", 0, NAN), run("fp32", 1, 0.25)}};
  results[1][1].status = Status::diverged;
  const SweepResult metric = sweep_result(sweep, results, SweepMeasure::metric);
  CHECK(metric.values == std::vector<std::vector<double>>{{0.75, 0.5}, {0.25, 0.25}});
  CHECK(metric.replaced == 1);
  CHECK(metric.diverged == 1);
  const SweepResult loss = sweep_result(sweep, results, SweepMeasure::loss);
  CHECK(loss.values == std::vector<std::vector<double>>{{0.25, 0.5}, {0.75, 0.75}});
  CHECK(to_string(metric).find("1 training diverged\n1 training without a finite accuracy") != std::string::npos);
  CHECK(to_string(loss).find("0.3750  1\n") != std::string::npos);
  CHECK(tables_of(metric).size() == 3);
  CHECK(to_json(metric).find("\"diverged\": 1") != std::string::npos);
}

TEST_CASE("the page of a sweep has its numbers, the intervals of combinations, and links to the parts") {
  const Sweep sweep =
      sweep_from_json(R"({"factors": {"lr": [1, 2], "</script>": {"a": {}, "b": {"recipe": "bf16-pure"}}}})", "s.json");
  std::vector<std::vector<Result>> results;
  for (const SweepPart& part : parts_of(sweep)) {
    std::vector<Result>& of_part = results.emplace_back();
    for (const amp::Recipe& recipe : part.recipes)
      for (const int seed : {0, 1, 2})
        of_part.push_back(run(recipe.name, seed, 0.5 + 0.01 * seed * seed + 0.1 * static_cast<double>(results.size())));
  }
  // One training departs: chance.
  results[0][0].test_accuracy += 0.03;
  const SweepResult result = sweep_result(sweep, results, SweepMeasure::metric);
  const std::string page = sweep_html(result, parts_of(sweep));
  for (const char* field : {"@CSS@", "@JS@", "@DATA@"}) CHECK(page.find(field) == std::string::npos);
  const std::string begin = "id=\"data\">";
  const std::size_t from = page.find(begin) + begin.size();
  const std::string text = page.substr(from, page.find("</script>", from) - from);
  const auto data = nlohmann::json::parse(text);  // no name ends the element
  CHECK(data["factors"][1]["name"] == "</script>");
  CHECK(data["terms"].size() == 3);
  CHECK(data["terms"][0]["holds"] == true);
  CHECK(data["parts"][1]["report"] == "part-2/report.html");
  CHECK(data["parts"][1]["options"] == " --lr 2");
  // Residuals: 0.03 in one of 12 cells, blocks and combinations taken out: 0.03^2 (1 - 1/4) (1 - 1/3) over 6 degrees.
  const double variance = 0.03 * 0.03 * 0.75 * (2.0 / 3) / 6;
  CHECK(data["combination_half"].get<double>() == doctest::Approx(2.4469 * std::sqrt(variance / 3)).epsilon(1e-4));
}

TEST_CASE("results that cannot be compared are an error; those that are alike have no effects") {
  const Sweep sweep = sweep_from_json(R"({"factors": {"lr": [1, 2]}})", "s.json");
  CHECK_THROWS_AS(sweep_result(sweep, {{run("fp32", 0, 0.5)}}, SweepMeasure::metric), Error);
  CHECK_THROWS_WITH_AS(sweep_result(sweep, {{run("fp32", 0, 0.5)}, {run("fp32", 0, NAN)}}, SweepMeasure::metric),
                       "1 of 2 trainings have no finite accuracy; more than half are needed", Error);
  std::vector<std::vector<Result>> other = {{run("fp32", 0, 0.5)}, {run("fp32", 0, 0.25)}};
  other[1][0].metric = {.name = "loss", .unit = "", .better = Direction::lower};
  CHECK_THROWS_WITH_AS(sweep_result(sweep, other, SweepMeasure::metric),
                       "part-1 is measured by accuracy, part-2 by loss; the levels of a sweep have one metric", Error);
  const std::vector<std::vector<Result>> same = {{run("fp32", 0, 0.5), run("fp32", 1, 0.3)},
                                                 {run("fp32", 0, 0.5), run("fp32", 1, 0.3)}};
  CHECK(to_string(sweep_result(sweep, same, SweepMeasure::metric)).find("no choice matters") != std::string::npos);
}
