// Folders of results: what a second comparison may do there, and reading them again.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/folder.h>
#include <gradual/lab/folder_lock.h>
#include <gradual/lab/lab.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

TEST_CASE("a second comparison does not replace the first unless it is told to") {
  const Folder folder("kept");
  const lab::Options o{.model_name = "mlp", .epochs = 1, .batch = 32};
  lab::compare(mlp, small_digits(), recipes({"fp32", "amp-fp16"}), folder.path.string(), o);
  const std::string first = folder.read("results.json");
  const std::string refused =
      message([&] { lab::compare(mlp, small_digits(), recipes({"fp32"}), folder.path.string(), o); });
  CHECK(refused == "the folder " + folder.path.string() +
                       " holds the results of an earlier comparison; choose another, replace them (--overwrite) or "
                       "continue (--resume)");
  CHECK(folder.read("results.json") == first);
  lab::Options replace = o;
  replace.overwrite = true;
  lab::compare(mlp, small_digits(), recipes({"fp32"}), folder.path.string(), replace);
  CHECK(lab::load_results(folder.path.string()).size() == 1);
}

TEST_CASE("results come back whole, from results.json alone without curves") {
  const Folder folder("loaded");
  const lab::Options o{.model_name = "mlp", .epochs = 1, .batch = 32, .seeds = 2};
  const auto made = lab::compare(mlp, small_digits(), recipes({"fp32", "bf16-pure"}), folder.path.string(), o);
  const auto read = lab::load_results(folder.path.string());
  REQUIRE(read.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(read[i].recipe == made[i].recipe);
    CHECK(read[i].curve.loss == made[i].curve.loss);
    CHECK(to_string(read[i].verdict) == to_string(made[i].verdict));
    CHECK(read[i].verdict.kind == made[i].verdict.kind);
    REQUIRE(read[i].difference.has_value() == made[i].difference.has_value());
    if (read[i].difference) CHECK(read[i].difference->half == made[i].difference->half);
  }
  CHECK(lab::report_html(read) == folder.read("report.html"));
  fs::remove(folder.path / "checkpoints/finished.json");
  const auto bare = lab::load_results(folder.path.string());
  REQUIRE(bare.size() == 4);
  CHECK(bare[2].curve.step.empty());
  CHECK(bare[2].test_loss == made[2].test_loss);
  CHECK(message([] { lab::load_results("no-such-folder"); }) ==
        "the folder no-such-folder holds no results.json of a comparison");
}

TEST_CASE("runs.csv has one line per run, whose fields results.json has too") {
  lab::Result r{.recipe = "a, b", .model = "m", .data = "d", .seed = 3, .test_loss = 0.5};
  r.peak_total = 7;
  const std::string csv = lab::runs_csv({r, r});
  CHECK(csv.starts_with("recipe,model,data,seed,epochs,steps,skipped_steps,final_scale,train_loss,test_loss,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 3);
  CHECK(csv.find("\n\"a, b\",m,d,3,0,0,0,1.0,,0.5,") != std::string::npos);
  CHECK(csv.find(",7,") != std::string::npos);
  CHECK(csv.find('{') == std::string::npos);
}

TEST_CASE("each recipe and seed has a file name of its own, also the name that an earlier version gave") {
  CHECK(lab::run_file("fp16-static:1024", 3) == "fp16-static%3A1024-seed3.safetensors");
  CHECK(lab::run_file("my_recipe", 0) == "my_recipe-seed0.safetensors");
  std::set<std::string> names;
  const std::vector<std::string> recipes = {"a/b", "a_b", "a:b", "a%2Fb", "a b", "ab", "a-seed1", "a", "ä"};
  for (const std::string& name : recipes)
    for (const std::uint64_t seed : {0, 1, 10}) names.insert(lab::run_file(name, seed));
  CHECK(names.size() == 3 * recipes.size());
  for (const std::string& name : names) CHECK(name.find('/') == std::string::npos);
}

namespace {

// Named after the arguments, in fp32 and in bf16.
std::vector<amp::Recipe> named(const std::string& one, const std::string& two) {
  auto list = recipes({"fp32", "bf16-pure"});
  list[0].name = one;
  list[1].name = two;
  return list;
}

}  // namespace

TEST_CASE("recipes whose names shared files resume, each from its own checkpoint") {
  const Folder whole("names-whole");
  const Folder parts("names");
  const auto list = named("a/b", "a_b");
  lab::Options o{.epochs = 2, .batch = 32};
  const auto expected = lab::compare(mlp, small_digits(), list, whole.path.string(), o);
  for (const int stop_at : {7, 17}) {  // in the first run, in the second
    int asked = 0;
    o.stop = [&] { return ++asked == stop_at; };
    lab::compare(mlp, small_digits(), list, parts.path.string(), o);
    o.resume = true;
  }
  o.stop = {};
  const auto resumed = lab::compare(mlp, small_digits(), list, parts.path.string(), o);
  REQUIRE(resumed.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) CHECK(resumed[i].curve.loss == expected[i].curve.loss);
}

TEST_CASE("a checkpoint with the name that an earlier version gave it resumes its own recipe alone") {
  const Folder folder("earlier-names");
  const auto list = named("x:y", "x/y");
  lab::Options o{.epochs = 2, .batch = 32};
  int asked = 0;
  o.stop = [&] { return ++asked == 7; };
  CHECK(lab::compare(mlp, small_digits(), {list[0]}, folder.path.string(), o).at(0).status == lab::Status::interrupted);
  const fs::path now = folder.path / "checkpoints" / lab::run_file("x:y", 0);
  const fs::path earlier = folder.path / "checkpoints/x_y-seed0.safetensors";
  REQUIRE(fs::exists(now));
  fs::rename(now, earlier);
  const lab::Folder opened(folder.path.string(), lab::Existing::resume);
  CHECK_FALSE(fs::exists(opened.checkpoint("x/y", 0)));
  CHECK(fs::exists(earlier));
  CHECK(opened.checkpoint("x:y", 0) == now.string());
  CHECK(fs::exists(now));
  CHECK_FALSE(fs::exists(earlier));
}

TEST_CASE("a name that is too long for a file is an error before anything is trained") {
  const Folder folder("long-name");
  const auto refused = [&](const std::string& name, const lab::Options& o) {
    return message([&] { lab::compare(mlp, small_digits(), named("fp32", name), folder.path.string(), o); });
  };
  bool started = false;
  lab::Options o{.epochs = 1, .batch = 32};
  o.started = [&] { started = true; };
  CHECK(refused(std::string(250, 'n'), o) ==
        "lab: the recipe name '" + std::string(40, 'n') +
            "..' of 250 bytes gives files whose names have 268 bytes; at most 242 are allowed");
  CHECK(refused(std::string(80, ':'), o).find("names have 258 bytes") != std::string::npos);
  CHECK_FALSE(started);
  CHECK_FALSE(fs::exists(folder.path));
  CHECK(refused(std::string(224, 'n'), o).empty());
}

TEST_CASE("control characters in names are an error") {
  CHECK(message([] { lab::compare(mlp, small_digits(), named("fp32", "a\033[31m"), "", {.epochs = 1}); }) ==
        "recipe 'a\\x1b[31m': its name has a control character; allowed are letters, digits and marks");
  CHECK(message([] {
          lab::compare(mlp, small_digits(), recipes({"fp32"}), "", {.model_name = "a\nb", .epochs = 1});
        }) == "lab: the name of the model, 'a\\x0ab', has a control character; allowed are letters, digits and marks");
  CHECK(message([] {
          const lab::LabData data{"d\t", [](std::uint64_t) { return small_digits(); }};
          lab::compare(mlp, data, recipes({"fp32"}), "", {.epochs = 1});
        }) == "lab: the name of the data, 'd\\x09', has a control character; allowed are letters, digits and marks");
}

TEST_CASE("one process at a time writes into a folder; the error names it") {
  const Folder folder("locked");
  const std::string path = folder.path.string();
  const std::string refused = "process " + std::to_string(getpid()) +
                              ", or one that it started, writes into the folder " + path +
                              "; wait for its end, or choose another folder";
  // Of another thread, to which this one's locks are another's.
  const auto elsewhere = [&] {
    std::string said;
    std::thread([&] { said = message([&] { const lab::FolderLock other(path); }); }).join();
    return said;
  };
  {
    const lab::FolderLock lock(path);
    const lab::FolderLock again(path + "/../" + folder.path.filename().string());
    CHECK(elsewhere() == refused);
    std::string compared;
    std::thread([&] {
      compared = message([&] { lab::compare(mlp, small_digits(), recipes({"fp32"}), path, {.epochs = 1}); });
    }).join();
    CHECK(compared == refused);
    CHECK_FALSE(fs::exists(folder.path / "results.json"));
  }
  CHECK(elsewhere().empty());
  CHECK_FALSE(fs::exists(folder.path / ".lock"));
}

TEST_CASE("a folder stays locked while a process lives that the holder has started, and no longer") {
  const Folder folder("locked-on");
  const std::string path = folder.path.string();
  int ready[2];
  int hold[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(hold) == 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const lab::FolderLock lock(path);
    const pid_t worker = fork();
    char byte = 0;
    if (worker == 0) {
      close(hold[1]);
      const ssize_t got = read(hold[0], &byte, 1);  // 0: the other end has closed
      _exit(got < 0 ? 1 : 0);
    }
    if (write(ready[1], &worker, sizeof worker) != static_cast<ssize_t>(sizeof worker)) _exit(1);
    pause();
    _exit(0);
  }
  pid_t worker = 0;
  REQUIRE(read(ready[0], &worker, sizeof worker) == static_cast<ssize_t>(sizeof worker));
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  CHECK(
      message([&] { const lab::FolderLock lock(path); }).starts_with("process " + std::to_string(holder) + ", or one"));
  close(hold[1]);  // ends the worker
  std::string said = "locked";
  for (int tries = 0; tries < 500 && !said.empty(); ++tries) {
    usleep(10000);
    said = message([&] { const lab::FolderLock lock(path); });
  }
  CHECK(said.empty());
  for (const int file : {ready[0], ready[1], hold[0]}) close(file);
}
