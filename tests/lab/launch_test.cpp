// The commands that a comparison prints repeat its runs: their words, quotes and lines, and the calls in C++, which are
// run here. tests/lab/commands.sh runs those of the program.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/launch.h>
#include <gradual/lab/search.h>
#include <gradual/lab/study_report.h>

#include <string>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

namespace {

// The code, and what it gives.
struct Called {
  std::string code;
  std::string text;
};
#define CALLED(...) \
  Called { #__VA_ARGS__, __VA_ARGS__ }

// Without the line breaks that the format of the source puts behind brackets.
std::string in_one_line(std::string code) {
  for (std::size_t at = 0; (at = code.find("( ")) != std::string::npos;) code.erase(at + 1, 1);
  return code;
}

double number_after(const std::string& text, const std::string& mark) {
  const std::size_t at = text.find(mark);
  REQUIRE_MESSAGE(at != std::string::npos, text);
  return std::stod(text.substr(at + mark.size()));
}

}  // namespace

TEST_CASE("launch: commands name the options, the recipe as it was named, the step and the seed") {
  const lab::Origin own{"./mine", {"--data", "npy:my x.npy,y.npy", "--epochs", "3"}, "my.json:b24"};
  CHECK(lab::step_command(own, {7, 0}) ==
        "./mine step --data 'npy:my x.npy,y.npy' --epochs 3 --recipe my.json:b24 --step 7");
  CHECK(lab::diff_command(own, {"./mine", own.options, "e4m3"}, {7, 2}) ==
        "./mine diff --data 'npy:my x.npy,y.npy' --epochs 3 --step 7 --seed 2 my.json:b24 e4m3");
  CHECK(lab::search_command(own, {7, 0}) == "./mine search --data 'npy:my x.npy,y.npy' --epochs 3 --step 7");
  CHECK(lab::step_command({}, {}).empty());
  CHECK(lab::shell_word("it's") == "'it'\\''s'");
  CHECK(lab::shell_word("") == "''");
}

TEST_CASE("launch: a long command goes on after a backslash, and never inside quotes or between option and value") {
  const std::string text = lab::wrapped_command("lab step --data 'npy:a --b c' --epochs 3 --recipe e4m3", 31, "  ");
  CHECK(text == "lab step --data 'npy:a --b c' \\\n  --epochs 3 --recipe e4m3");
  // A quoted word with an apostrophe ends where it ends.
  const std::string quoted =
      lab::wrapped_command("lab step --data 'it'\\''s --b c' --epochs 3 --recipe e4m3", 34, "  ");
  CHECK(quoted == "lab step --data 'it'\\''s --b c' \\\n  --epochs 3 --recipe e4m3");
}

TEST_CASE("launch: compare() in C++ gives calls that repeat its runs") {
  const lab::MakeModel make_model = [] { return mlp(); };
  const lab::LabData data = small_digits();
  const lab::Options options{.epochs = 2,
                             .batch = 20,
                             .lr = 0.01,
                             .optimizer = "sgd",
                             .training = {.rates = {.momentum = 0.5}, .schedule = lab::ScheduleKind::one_cycle}};
  amp::Recipe mine = amp::recipe("e4m3");
  mine.name = "mine";
  mine.description = "of two words";
  const auto results =
      lab::compare(make_model, data, {amp::recipe("fp32"), amp::recipe("e4m3:stochastic"), mine}, "", options);
  const lab::Result& r = results[1];
  const Called step =
      CALLED(lab::step_report(make_model, data, amp::recipe("e4m3:stochastic"),
                              {.step = 9,
                               .batch = 20,
                               .epochs = 2,
                               .lr = 0.01,
                               .optimizer = "sgd",
                               .training = {.rates = {.momentum = 0.5}, .schedule = lab::ScheduleKind::one_cycle}}));
  CHECK(lab::step_command(r.origin, {9, 0}) == in_one_line(step.code));
  CHECK(number_after(step.text, ", loss ") == doctest::Approx(r.curve.loss.at(9)).epsilon(1e-8));
  const Called diff =
      CALLED(lab::diff_report(make_model, data, amp::recipe("e4m3:stochastic"), amp::recipe("fp32"),
                              {.step = 3,
                               .batch = 20,
                               .epochs = 2,
                               .lr = 0.01,
                               .optimizer = "sgd",
                               .training = {.rates = {.momentum = 0.5}, .schedule = lab::ScheduleKind::one_cycle}}));
  CHECK(lab::diff_command(r.origin, results[0].origin, {3, 0}) == in_one_line(diff.code));
  // The recipe of no name travels whole.
  const std::string& expression = results[2].origin.recipe;
  const std::string begin = "amp::recipe_from_json(R\"json(";
  REQUIRE(expression.starts_with(begin));
  REQUIRE(expression.ends_with(")json\")"));
  const std::string json = expression.substr(begin.size(), expression.size() - begin.size() - 7);
  CHECK(amp::to_json(amp::recipe_from_json(json)) == amp::to_json(mine));
  CHECK(
      lab::search_command(r.origin, {9, 0}) ==
      "lab::search(make_model, data, {.step = {.step = 9, .batch = 20, .epochs = 2, .lr = 0.01, .optimizer = \"sgd\", "
      ".training = {.rates = {.momentum = 0.5}, .schedule = lab::ScheduleKind::one_cycle}}, .run = {.epochs = 2, "
      ".batch = 20, .lr = 0.01, .optimizer = \"sgd\", .training = {.rates = {.momentum = 0.5}, .schedule = "
      "lab::ScheduleKind::one_cycle}, .seeds = 3}})");
  lab::Origin other = results[0].origin;
  other.options[1] = "5";
  CHECK(lab::diff_command(r.origin, other, {3, 0}).empty());
}

TEST_CASE("launch: a recipe whose name looks like another one's travels whole") {
  for (const char* name : {"pure", "pure:mine", "fp16-static:high", "e4m3:mine", "mx"}) {
    CAPTURE(std::string(name));
    amp::Recipe mine = amp::recipe("amp-bf16");
    mine.name = name;
    CHECK(lab::origin_of(mine, {}).recipe.starts_with("amp::recipe_from_json("));
  }
}

TEST_CASE("launch: results keep how they began, and nothing is said of what nothing can repeat") {
  lab::Options options{.epochs = 1, .launch = {.program = "./mine", .options = {"--epochs", "1"}, .recipes = {}}};
  options.launch.recipes["e4m3"] = "f.json:e4m3";
  const auto results = lab::compare([] { return mlp(); }, small_digits(), recipes({"fp32", "e4m3"}), "", options);
  CHECK(results[1].origin == lab::Origin{"./mine", {"--epochs", "1"}, "f.json:e4m3"});
  CHECK(results[0].origin.recipe == "fp32");
  const auto read = lab::results_from_json(lab::results_json(results, true), "f");
  CHECK(read[1].origin == results[1].origin);
  options.launch.options = {"--data", "npy:a\x1b.npy"};
  CHECK(lab::origin_of(amp::recipe("fp32"), options) == lab::Origin{});
  CHECK(lab::origin_of(amp::recipe("fp32"), {.ranks_emulated = 2}) == lab::Origin{});
}
