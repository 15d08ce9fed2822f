// What a kill at any moment leaves: the next call goes on from there to the results of a call that was never killed.
#include <doctest/doctest.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/support/threads.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/search.h>
#include <gradual/lab/share.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "kill_at.h"
#include "support/files.h"

using namespace gradual;
using namespace gradual::test;

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.insert(fs::relative(entry.path(), folder).string());
  return files;
}

// The runs of a file of results without what depends on the machine's speed and on when its memory was free.
nlohmann::json runs_of(const fs::path& file) {
  nlohmann::json runs = nlohmann::json::parse(text_of(file)).at("runs");
  for (nlohmann::json& run : runs) {
    run.erase("ms_per_step");
    run.erase("peak_bytes");
  }
  return runs;
}

void check_equal(const fs::path& folder, const fs::path& whole) {
  CHECK(files_in(folder) == files_in(whole));
  for (const char* file : {"results.json", "checkpoints/finished.json"})
    CHECK(runs_of(folder / file) == runs_of(whole / file));
  CHECK(text_of(folder / "curves.csv") == text_of(whole / "curves.csv"));
  CHECK(text_of(folder / "report.html").find("</html>") != std::string::npos);
}

// Read once, for all children.
const data::Split& few_digits() {
  static const data::Split split = [] {
    data::Dataset few = data::digits();
    few.inputs = few.inputs.narrow(0, 0, 60);
    few.targets = few.targets.narrow(0, 0, 60);
    return data::split(few, 48, 0);
  }();
  return split;
}

lab::LabData task() {
  return {"digits", [](std::uint64_t) { return few_digits(); }};
}

std::shared_ptr<nn::Module> tiny() {
  return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(64, 8), nn::ReLU(), nn::Linear(8, 10));
}

// What is done once for all children. Those of a process that has threads could not use them.
struct OneThread {
  OneThread() {
    set_num_threads(1);
    static_cast<void>(few_digits());
    static_cast<void>(lab::report_html({}));  // probes this machine's sums
  }
};

// A folder that does not exist at first, and is removed at the end.
struct TestFolder {
  explicit TestFolder(const std::string& name) : path(temporary / name) {}
  std::string text() const { return path.string(); }
  const ::test::TemporaryFolder temporary;
  const fs::path path;
};

// Calls again(folder) after a kill of first(folder) at each of its calls, and compares the files with those of whole.
template <class First, class Again>
int kill_at_each_call(const std::string& name, const First& first, const Again& again) {
  const TestFolder whole(name + "-whole");
  REQUIRE(ends_before_call(0, [&] { first(whole.text()); }));
  int kills = 0;
  for (bool ended = false; !ended; ++kills) {
    CAPTURE(kills);
    const TestFolder broken(name);
    ended = ends_before_call(kills + 1, [&] { first(broken.text()); });
    if (!ended) REQUIRE(ends_before_call(0, [&] { again(broken.text()); }));
    check_equal(broken.path, whole.path);
  }
  MESSAGE(name << ": killed at " << kills - 1 << " calls");
  return kills - 1;
}

// fp16-static's scale overflows in every step, which has findings and cures.
std::vector<amp::Recipe> failing_first() { return {amp::recipe("fp16-static:1e9"), amp::recipe("fp32")}; }

lab::Options options() { return {.epochs = 1, .batch = 24}; }

void compare(const std::string& folder, lab::Options o) {
  const auto results = lab::compare(tiny, task(), failing_first(), folder, o);
  if (results[0].findings.empty()) throw_error("the recipe that fails has no findings");
}

void share(const std::string& folder, lab::Options o) {
  lab::begin_shared(folder, o);
  {
    const lab::TakesPart here(folder);
    lab::train_shared(tiny, task(), failing_first(), folder, o);
  }
  lab::await_shared(folder);
  o.resume = true;
  compare(folder, o);
}

}  // namespace

TEST_CASE("a comparison that is killed at any call resumes to the same results, findings included") {
  const OneThread one;
  lab::Options again = options();
  again.resume = true;
  const int kills = kill_at_each_call(
      "compare", [](const std::string& folder) { compare(folder, options()); },
      [&](const std::string& folder) { compare(folder, again); });
  CHECK(kills > 100);
}

TEST_CASE("a comparison with cures that is killed at any call resumes to the same results") {
  const OneThread one;
  lab::Options first = options();
  first.cure = true;
  lab::Options again = first;
  again.resume = true;
  const int kills = kill_at_each_call(
      "cure", [&](const std::string& folder) { compare(folder, first); },
      [&](const std::string& folder) { compare(folder, again); });
  CHECK(kills > 100);
}

TEST_CASE("shared runs that are killed at any call resume to the same results") {
  const OneThread one;
  lab::Options again = options();
  again.resume = true;
  const int kills = kill_at_each_call(
      "share", [](const std::string& folder) { share(folder, options()); },
      [&](const std::string& folder) { share(folder, again); });
  CHECK(kills > 100);
}

TEST_CASE("a search that is killed at any call leaves whole files, and done again gives the same ones") {
  const OneThread one;
  const auto search = [](const std::string& folder, bool overwrite) {
    lab::SearchOptions o{.formats = {"e2m1", "e8m7", "fp32"},
                         .within = 20,
                         .noise = 0,
                         .trainings = 8,
                         .unseen = 1,
                         .random = 1,
                         .step = {.step = 1, .batch = 24, .epochs = 1},
                         .run = {.epochs = 1, .batch = 24, .seeds = 1}};
    lab::begin_search(folder, overwrite);
    o.trial = [&](const lab::Search& s) { lab::save_search(folder, s); };
    lab::save_search(folder, lab::search(tiny, task(), o));
  };
  const TestFolder whole("search-whole");
  REQUIRE(ends_before_call(0, [&] { search(whole.text(), false); }));
  const std::string trials = text_of(whole.path / "trials.csv");
  REQUIRE(fs::exists(whole.path / "recipe.json"));
  const TestFolder broken("search");
  int kills = 0;
  while (!ends_before_call(kills + 1, [&] { search(broken.text(), kills > 0); })) {
    CAPTURE(kills);
    CHECK(trials.starts_with(text_of(broken.path / "trials.csv")));
    const fs::path recipe = broken.path / "recipe.json";
    if (fs::exists(recipe)) CHECK(amp::load_recipes(recipe.string()).size() == 1);
    if (fs::exists(recipe)) CHECK(fs::exists(broken.path / "trials.csv"));
    ++kills;
  }
  MESSAGE("search: killed at " << kills << " calls");
  CHECK(kills > 50);
  CHECK(files_in(broken.path) == files_in(whole.path));
  for (const char* file : {"trials.csv", "front.svg", "recipe.json"})
    CHECK(text_of(broken.path / file) == text_of(whole.path / file));
}
