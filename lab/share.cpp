#include "share.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "../core/files/atomic_file.h"
#include "../core/support/throwf.h"
#include "folder.h"
#include "run.h"
#include "verdict.h"

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

int opened(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) throw_error("cannot write '" + path + "'");
  return file;
}

// The file that all who take part hold a shared lock on.
std::string file_of_all(const std::string& out) { return out + "/checkpoints/all.lock"; }

// A lock that ends with the process that holds it, however that ends.
class Claim : Pinned {
 public:
  Claim(const std::string& path, bool wait) : file_(opened(path)) {
    held_ = flock(file_, wait ? LOCK_EX : LOCK_EX | LOCK_NB) == 0;
  }
  ~Claim() { close(file_); }
  bool held() const { return held_; }
  // Whether a process has trained the run to its end; the file then has a byte.
  bool done() const { return lseek(file_, 0, SEEK_END) > 0; }
  void finish() const {
    if (write(file_, "1", 1) != 1) throwf("cannot write that a run has ended: {}", std::strerror(errno));
  }

 private:
  int file_;
  bool held_;
};

// A run of the comparison. Its locks are held while a process trains it, and while one explains it.
struct SharedRun {
  const amp::Recipe& recipe;
  std::uint64_t seed;
  std::string checkpoint;
};

template <class F> void for_locks(const std::string& out, const F& f) {
  for (const auto& entry : fs::directory_iterator(out + "/checkpoints"))
    if (entry.path().extension() == ".lock") f(entry.path().string());
}

// The recipes that compare() trains: with fp32 for the verdicts. Those that quantise take longest and come first, so
// that no process waits long for the last one.
std::vector<amp::Recipe> all_recipes(std::vector<amp::Recipe> recipes) {
  if (std::ranges::find(recipes, kBaseline, &amp::Recipe::name) == recipes.end())
    recipes.push_back(amp::recipe("fp32"));
  std::ranges::stable_partition(recipes, [](const amp::Recipe& r) { return r.quantization.has_value(); });
  return recipes;
}

void save_result(const SharedRun& run, const Result& result) {
  write_file_atomically(run.checkpoint + ".result", results_json({result}, true));
}

// Explains the runs that no other process explains, from their checkpoints. Those whose fp32 is missing are left.
void explain_shared(const MakeModel& make_model, const LabData& data, const std::vector<SharedRun>& runs,
                    const std::vector<Result>& finished, Options options) {
  options.progress = {};
  std::vector<Result> results;
  for (const SharedRun& r : runs)
    if (const Result* done = finished_run(finished, r.recipe, r.seed, options, data)) results.push_back(*done);
  judge(results, {}, judging_of(options));
  for (const SharedRun& r : runs) {
    const Claim claim(r.checkpoint + ".explain.lock", false);
    const Result* done = finished_run(results, r.recipe, r.seed, options, data);
    const Result* fp32 = done ? baseline(results, {}, *done) : nullptr;
    if (!claim.held() || !fp32 || !fs::exists(r.checkpoint) || may_be_decided(*done, options)) continue;
    if (may_have_to_explain(*done)) {
      Run run(make_model, data, r.recipe, r.seed, options);
      run.load(r.checkpoint);
      run.train("", {.recipe = r.recipe});  // it has ended
      Result explained = *done;
      if (r.seed == 0) run.observe_errors(explained);  // as in compare(), where the evidence is of later steps
      inspect::Evidence evidence = run.evidence();
      if (has_to_explain(*done, evidence)) {
        auto found = explain(make_model, data, r.recipe, r.seed, options, *done, fp32, std::move(evidence));
        if (!found) return;
        explained.findings = std::move(*found);
        save_result(r, explained);
      }
    }
    fs::remove(r.checkpoint);
  }
}

}  // namespace

void begin_shared(const std::string& out, const Options& options) {
  if (out.empty()) throw_error("shared runs need a folder, --out");
  const Folder folder(out, existing(options));
  if (!options.resume) folder.clear();
  remove_locks(out);
}

void train_shared(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
                  const std::string& out, const Options& options) {
  if (!options.trace.empty() || !options.profile.empty())
    throw_error("--trace and --profile write one file; they are for one process");
  const std::vector<amp::Recipe> all = all_recipes(recipes);
  const std::string first = all.size() == recipes.size() ? "fp32" : recipes.front().name;
  const Folder folder(out, Existing::resume);
  const std::vector<Result> before = options.resume ? folder.finished() : std::vector<Result>();
  std::vector<SharedRun> runs;
  for (const amp::Recipe& recipe : all)
    for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(options.seeds); ++seed)
      runs.push_back({recipe, seed, folder.checkpoint(recipe.name, seed)});
  for (const bool wait : {false, true})  // at last those too whose process died
    for (const SharedRun& r : runs) {
      const Claim claim(r.checkpoint + ".lock", wait);
      if (options.stop && options.stop()) return;
      const bool saved = fs::exists(r.checkpoint);
      if (!claim.held() || claim.done() || (!saved && finished_run(before, r.recipe, r.seed, options, data))) continue;
      Run run(make_model, data, r.recipe, r.seed, options);
      if (r.recipe.name == first && r.seed == 0) run.want_what_if(recipes);
      if (saved) run.load(r.checkpoint);
      run.train(r.checkpoint, {.recipe = r.recipe,
                               .run = static_cast<int>(&r - runs.data()),
                               .runs = static_cast<int>(runs.size()),
                               .seed = r.seed});
      if (!run.ended()) return;
      Result result = run.result();
      if (r.seed == 0) run.observe_errors(result);
      save_result(r, result);
      claim.finish();
    }
  explain_shared(make_model, data, runs, folder.finished(), options);
}

TakesPart::TakesPart(const std::string& out) : file_(opened(file_of_all(out))) { flock(file_, LOCK_SH); }
TakesPart::~TakesPart() { close(file_); }

void await_shared(const std::string& out) {
  const Claim alone(file_of_all(out), true);
  remove_locks(out);
}

void remove_locks(const std::string& out) {
  for_locks(out, [](const std::string& lock) { fs::remove(lock); });
}

}  // namespace gradual::lab
