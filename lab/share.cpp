#include "share.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "../core/support/error.h"
#include "folder.h"
#include "run.h"

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

// A lock that ends with the process that holds it, however that ends.
class Claim : Pinned {
 public:
  Claim(const std::string& path, bool wait) : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (file_ < 0) throw_error("cannot write '" + path + "'");
    held_ = flock(file_, wait ? LOCK_EX : LOCK_EX | LOCK_NB) == 0;
  }
  ~Claim() { close(file_); }
  bool held() const { return held_; }
  // Whether a process has trained the run to its end; the file then has a byte.
  bool done() const { return lseek(file_, 0, SEEK_END) > 0; }
  void finish() const { static_cast<void>(write(file_, "1", 1)); }

 private:
  int file_;
  bool held_;
};

// As compare() trains them: with fp32 for the verdicts.
std::vector<amp::Recipe> with_fp32(std::vector<amp::Recipe> recipes) {
  if (std::ranges::find(recipes, "fp32", &amp::Recipe::name) == recipes.end()) recipes.push_back(amp::recipe("fp32"));
  return recipes;
}

// Calls f(recipe, seed, checkpoint, number) for each run.
template <class F>
void for_runs(const std::vector<amp::Recipe>& recipes, const std::string& out, const Options& options, const F& f) {
  const Folder folder(out, Existing::resume);
  int number = 0;
  for (const amp::Recipe& recipe : recipes)
    for (int seed = 0; seed < options.seeds; ++seed, ++number)
      f(recipe, static_cast<std::uint64_t>(seed), folder.checkpoint(recipe.name, static_cast<std::uint64_t>(seed)),
        number);
}

std::string lock_of(const std::string& checkpoint) { return checkpoint + ".lock"; }

}  // namespace

void begin_shared(const std::vector<amp::Recipe>& recipes, const std::string& out, const Options& options) {
  if (out.empty()) throw_error("shared runs need a folder, --out");
  const Folder folder(out, existing(options));
  if (!options.resume) folder.clear();
  remove_locks(recipes, out, options);
}

void train_shared(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
                  const std::string& out, const Options& options) {
  if (!options.trace.empty() || !options.profile.empty())
    throw_error("--trace and --profile write one file; they are for one process");
  const std::vector<amp::Recipe> all = with_fp32(recipes);
  const bool listed = all.size() == recipes.size();
  const std::string first = listed ? "fp32" : recipes.front().name;
  const std::vector<Result> before = options.resume ? Folder(out, Existing::resume).finished() : std::vector<Result>();
  const int runs = static_cast<int>(all.size()) * options.seeds;
  for_runs(all, out, options,
           [&](const amp::Recipe& recipe, std::uint64_t seed, const std::string& checkpoint, int number) {
             if (options.stop && options.stop()) return;
             const Claim claim(lock_of(checkpoint), false);
             if (!claim.held() || claim.done()) return;
             const bool saved = fs::exists(checkpoint);
             if (!saved && finished_run(before, recipe, seed, options, data)) return;
             Run run(make_model, data, recipe, seed, options);
             if (recipe.name == first && seed == 0) run.want_what_if(all);
             if (saved) run.load(checkpoint);
             if (!run.ended()) run.train(checkpoint, {.recipe = recipe, .run = number, .runs = runs, .seed = seed});
             if (run.ended()) claim.finish();
           });
}

void await_shared(const std::vector<amp::Recipe>& recipes, const std::string& out, const Options& options) {
  for_runs(with_fp32(recipes), out, options, [](const auto&, auto, const std::string& checkpoint, int) {
    static_cast<void>(Claim(lock_of(checkpoint), true));
  });
}

void remove_locks(const std::vector<amp::Recipe>& recipes, const std::string& out, const Options& options) {
  for_runs(with_fp32(recipes), out, options,
           [](const auto&, auto, const std::string& checkpoint, int) { fs::remove(lock_of(checkpoint)); });
}

}  // namespace gradual::lab
