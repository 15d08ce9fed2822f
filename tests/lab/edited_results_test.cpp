// Files of results that were edited: the error names file, field and what is allowed.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>

#include <nlohmann/json.hpp>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

namespace {

using Json = nlohmann::json;

// Two runs with all that a file of results can have.
const std::string& whole_text() {
  static const std::string text = [] {
    const lab::Options o{.epochs = 2, .batch = 32, .sample_every = 2};
    return lab::results_json(lab::compare(mlp, small_digits(), recipes({"fp32", "mxfp4"}), "", o), true);
  }();
  return text;
}

// What is said of the file with another value at a place.
std::string said(const std::string& place, const Json& value) {
  Json edited = Json::parse(whole_text());
  edited.at(Json::json_pointer(place.substr(0, place.rfind('/'))));  // the object must be there
  edited[Json::json_pointer(place)] = value;
  return message([&] { lab::results_from_json(edited.dump(), "results.json"); });
}

}  // namespace

TEST_CASE("a value of another type is named with its place in the file") {
  struct Case {
    std::string place;
    Json value;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"/runs", nullptr, "runs is null; a list is expected"},
      {"/runs", Json::object(), "runs is {}; a list is expected"},
      {"/runs/1", "x", "runs[1] is \"x\"; an object is expected"},
      {"/runs/1/recipe", 7, "runs[1].recipe is 7; a text is expected"},
      {"/runs/0/steps", "many", "runs[0].steps is \"many\"; a whole number is expected"},
      {"/runs/0/steps", 1.5, "runs[0].steps is 1.5; a whole number is expected"},
      {"/runs/0/steps", std::uint64_t{1} << 63,
       "runs[0].steps is 9223372036854775808; a whole number from -9223372036854775808 to 9223372036854775807 is "
       "expected"},
      {"/runs/0/test_loss", "low", "runs[0].test_loss is \"low\"; a number or null is expected"},
      {"/runs/0/curve", 3, "runs[0].curve is 3; an object is expected"},
      {"/runs/0/curve/loss", 3, "runs[0].curve.loss is 3; a list is expected"},
      {"/runs/0/curve/loss/2", "x", "runs[0].curve.loss[2] is \"x\"; a number or null is expected"},
      {"/runs/0/curve/skipped/0", 1, "runs[0].curve.skipped[0] is 1; true or false is expected"},
      {"/runs/0/definition", "fp32", "runs[0].definition is \"fp32\"; an object or null is expected"},
      {"/runs/0/histograms/0/first_exponent", 1e9,
       "runs[0].histograms[0].first_exponent is 1000000000.0; a whole "
       "number is expected"},
      {"/runs/0/histograms/0/first_exponent", std::int64_t{1} << 40,
       "runs[0].histograms[0].first_exponent is 1099511627776; a whole number from -2147483648 to 2147483647 is "
       "expected"},
      {"/runs/0/recipe", "fp32\033[31m",
       "runs[0].recipe is \"fp32\\u001b[31m\"; a text without control characters is expected"},
  };
  REQUIRE(said("/runs/0/steps", Json::parse(whole_text())["runs"][0]["steps"]).empty());
  for (const Case& c : cases) {
    CAPTURE(c.place);
    CHECK(said(c.place, c.value) == "results.json: " + c.message);
  }
  Json without = Json::parse(whole_text());
  without["runs"][1].erase("steps");
  CHECK(message([&] { lab::results_from_json(without.dump(), "results.json"); }) ==
        "results.json: runs[1] has no field \"steps\"");
}

TEST_CASE("a value that no run can have is named with what is allowed") {
  struct Case {
    std::string field;
    Json value;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"steps", -5, "is -5; it must be at least 0"},
      {"seed", -1, "is -1; it must be at least 0"},
      {"epochs", -1, "is -1; it must be at least 0"},
      {"skipped_steps", 100000, "is 100000; it must be at most 10, the steps"},
      {"test_samples", -1, "is -1; it must be at least 0"},
      {"batch", -64, "is -64; it must be at least 0"},
      {"bytes_sent", -1, "is -1; it must be at least 0"},
      {"test_accuracy", 1e300, "is 1e+300; it must be 0 to 1, or null"},
      {"test_accuracy", -0.1, "is -0.1; it must be 0 to 1, or null"},
      {"underflow_percent", 101, "is 101; it must be 0 to 100, or null"},
      {"overflow_percent", -1, "is -1; it must be 0 to 100, or null"},
      {"zero_percent", 1e9, "is 1000000000; it must be 0 to 100, or null"},
      {"final_scale", -2, "is -2; it must be at least 0"},
      {"ms_per_step", -2, "is -2; it must be at least 0"},
      {"lr", -1, "is -1; it must be at least 0"},
      {"status", "fine", "is \"fine\"; allowed are ok, all skipped, diverged, interrupted"},
      {"peak_bytes/total", -1, "is -1; it must be at least 0"},
      {"peak_bytes/gradients", -1, "is -1; it must be at least 0"},
      {"difference/mean", 2, "is 2; it must be -1 to 1, or null"},
      {"difference/half_interval", -2, "is -2; it must be at least 0"},
      {"casts/0/role", "wheel", "is \"wheel\"; allowed are activation, weight, error, weight gradient"},
      {"casts/0/elements", -1, "is -1; it must be at least 0"},
      {"casts/0/underflow_percent", 200, "is 200; it must be 0 to 100, or null"},
      {"curve/step/0", -1, "is -1; it must be at least 0"},
      {"curve/step/3", 2, "is 2; it must be at least 3"},
      {"curve/scale/1", -1, "is -1; it must be at least 0"},
      {"curve/underflow_percent/0", 101, "is 101; it must be 0 to 100, or null"},
      {"curve/loss", Json::array({1}), "has 1 values; its steps are 10"},
      {"histograms/0/counts/3", -1, "is -1; it must be at least 0"},
      {"histograms/1/role", "", "is \"\"; allowed are activation, weight, error, weight gradient"},
      {"blocks/0/columns", 0, "is 0; it must be at least 1"},
      {"blocks/0/clipped_percent/0", 101, "is 101; it must be 0 to 100, or null"},
      {"blocks/0/regret_percent", Json::array(), "has 0 values; clipped_percent has "},
      {"updates/0/step/1", 0, "is 0; it must be at least 1"},
      {"updates/0/ratio", Json::array(), "has 0 values; its steps are "},
  };
  for (const Case& c : cases) {
    CAPTURE(c.field);
    std::string path = "runs[1]";
    std::istringstream parts(c.field);
    for (std::string part; std::getline(parts, part, '/');)
      path += std::isdigit(static_cast<unsigned char>(part[0])) ? "[" + part + "]" : "." + part;
    const std::string text = said("/runs/1/" + c.field, c.value);
    CAPTURE(text);
    CHECK(text.starts_with("results.json: " + path + " " + c.message));
  }
}
