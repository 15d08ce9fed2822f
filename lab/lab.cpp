#include "lab.h"

#include <algorithm>
#include <filesystem>

#include "../core/files/atomic_file.h"
#include "../core/files/input_file.h"
#include "../core/support/generator.h"
#include "run.h"
#include "verdict.h"

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

void check_options(const std::vector<amp::Recipe>& recipes, const Options& o) {
  const auto at_least = [](const char* what, std::int64_t v, std::int64_t least) {
    if (!(v >= least))
      throw_error(std::string("lab: ") + what + " is " + std::to_string(v) + "; it must be at least " +
                  std::to_string(least));
  };
  if (recipes.empty()) throw_error("lab: no recipe was given");
  for (std::size_t i = 0; i < recipes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (recipes[i].name == recipes[j].name) throw_error("lab: the recipe " + recipes[i].name + " is listed twice");
  at_least("epochs", o.epochs, 1);
  at_least("batch", o.batch, 1);
  at_least("seeds", o.seeds, 1);
  at_least("sample_every", o.sample_every, 1);
  if (!(o.lr >= 0)) throw_error("lab: lr is " + std::to_string(o.lr) + "; it must be positive, or 0 for the usual one");
  if (o.optimizer != "adamw" && o.optimizer != "adam" && o.optimizer != "sgd")
    throw_error("lab: no optimizer '" + o.optimizer + "'; allowed are adamw, adam and sgd");
}

// A recipe's name as part of a file name: "fp16-static:1024" has a character that some systems refuse.
std::string file_name(const std::string& recipe, std::uint64_t seed) {
  std::string text = recipe + "-seed" + std::to_string(seed);
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  return text + ".safetensors";
}

bool same_run(const Result& a, const Result& b) {
  return a.recipe == b.recipe && a.seed == b.seed && a.model == b.model && a.data == b.data;
}

class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {
    if (path_.empty()) return;
    std::error_code error;
    fs::create_directories(path_ + "/checkpoints", error);
    if (error) throw_error("cannot make the folder " + path_ + "/checkpoints: " + error.message());
    for (const std::string& file :
         {path_ + "/results.json", path_ + "/curves.csv", path_ + "/report.html", finished_path()})
      static_cast<void>(AtomicFile(file));  // fails now, not after the first run
  }
  std::string checkpoint(const std::string& recipe, std::uint64_t seed) const {
    return path_.empty() ? "" : path_ + "/checkpoints/" + file_name(recipe, seed);
  }
  // judged: `results` with verdicts. `before`: finished runs of earlier calls, which stay known to --resume though this
  // call does not list them.
  void write(const std::vector<Result>& judged, const std::vector<Result>& results,
             const std::vector<Result>& before) const {
    if (path_.empty()) return;
    write_file_atomically(path_ + "/results.json", results_json(judged, false));
    write_file_atomically(path_ + "/curves.csv", curves_csv(judged));
    write_file_atomically(path_ + "/report.html", report_html(judged));
    std::vector<Result> known = results;
    for (const Result& b : before)
      if (std::none_of(results.begin(), results.end(), [&](const Result& r) { return same_run(r, b); }))
        known.push_back(b);
    write_file_atomically(finished_path(), results_json(known, true));
  }
  std::vector<Result> finished() const {
    if (!fs::exists(finished_path())) return {};
    return results_from_json(read_file(finished_path()), finished_path());
  }

 private:
  std::string finished_path() const { return path_ + "/checkpoints/finished.json"; }
  std::string path_;
};

// True if a run of these was finished, with any settings.
bool is_finished(const Result& r, const amp::Recipe& recipe, std::uint64_t seed, const Options& o,
                 const LabData& data) {
  return r.recipe == recipe.name && r.seed == static_cast<std::int64_t>(seed) && r.model == o.model_name &&
         r.data == data.name && r.status != "interrupted";
}

// A finished run of the same settings.
const Result* find(const std::vector<Result>& results, const amp::Recipe& recipe, std::uint64_t seed, const Options& o,
                   const LabData& data) {
  for (const Result& r : results)
    if (is_finished(r, recipe, seed, o, data) && r.settings == settings(recipe, o)) return &r;
  return nullptr;
}

std::vector<Result> judged(std::vector<Result> results) {
  judge(results);
  return results;
}

// Runs each recipe's first cure, with its first seed, and puts into the finding what came of it.
void try_cures(std::vector<Result>& results, const MakeModel& make_model, const LabData& data,
               const std::vector<amp::Recipe>& recipes, Options options) {
  options.trace.clear(), options.profile.clear();
  for (const amp::Recipe& recipe : recipes) {
    const auto r = std::ranges::find(results, recipe.name, &Result::recipe);
    if (r == results.end() || (options.stop && options.stop())) continue;
    const auto f = std::ranges::find_if(r->findings, [](const Finding& x) { return !x.cure.empty(); });
    if (f == r->findings.end()) continue;
    const amp::Recipe cured = inspect::edited(recipe, f->cure);
    Run run(make_model, data, cured, static_cast<std::uint64_t>(r->seed), options);
    if (!run.train("", {.recipe = cured, .seed = static_cast<std::uint64_t>(r->seed)})) continue;
    std::vector<Result> with = results;
    with.push_back(run.result());
    judge(with);
    f->tried = Finding::Tried{with.back().test_accuracy, with.back().test_loss, with.back().verdict};
  }
}

}  // namespace

void check(const MakeModel& make_model, const std::vector<amp::Recipe>& recipes, const std::string& out,
           const Options& options) {
  check_options(recipes, options);
  if (options.device.is_cuda()) device::select(options.device);  // an Error now if there is none
  {
    Generator generator(0);
    const GeneratorScope scope(generator);
    const std::shared_ptr<nn::Module> model = make_model();
    for (const amp::Recipe& r : recipes) amp::check_valid(r, *model);
  }
  const Folder writable(out);
}

std::vector<Result> compare(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
                            const std::string& out, const Options& options) {
  check(make_model, recipes, out, options);
  const Folder folder(out);
  const std::vector<Result> before = options.resume && !out.empty() ? folder.finished() : std::vector<Result>{};
  for (const std::string& path : {options.trace, options.profile})
    if (!path.empty() && path != "-") write_file_atomically(path, "");
  if (options.started) options.started();
  std::vector<Result> results;
  int number = 0;
  // one run provides the numbers for the section on formats (what_if): fp32's, if there is one
  const auto full = std::find_if(recipes.begin(), recipes.end(), [](const auto& r) { return r.name == "fp32"; });
  const amp::Recipe& looked_at = full == recipes.end() ? recipes.front() : *full;
  for (const amp::Recipe& recipe : recipes) {
    for (int seed = 0; seed < options.seeds; ++seed, ++number) {
      const auto s = static_cast<std::uint64_t>(seed);
      if (const Result* done = find(before, recipe, s, options, data)) {
        results.push_back(*done);
        continue;
      }
      if (options.stop && options.stop()) continue;
      for (const Result& b : before)
        if (options.note && is_finished(b, recipe, s, options, data))
          options.note("the finished run of " + recipe.name + ", seed " + std::to_string(seed) +
                       ", had other settings and is done anew: " + differences(b.settings, settings(recipe, options)));
      Run run(make_model, data, recipe, s, options);
      if (&recipe == &looked_at && seed == 0) run.want_what_if();
      const std::string checkpoint = folder.checkpoint(recipe.name, s);
      if (options.resume && !checkpoint.empty() && fs::exists(checkpoint)) run.load(checkpoint);
      Progress progress{
          .recipe = recipe, .run = number, .runs = static_cast<int>(recipes.size()) * options.seeds, .seed = s};
      const bool finished = run.train(checkpoint, progress);
      Result result = run.result();
      if (finished) result.findings = explain(make_model, data, recipe, s, options, result, run.evidence());
      results.push_back(std::move(result));
      folder.write(judged(results), results, before);
      if (finished && !checkpoint.empty()) fs::remove(checkpoint);
    }
  }
  std::vector<Result> all = judged(results);
  if (options.cure) try_cures(all, make_model, data, recipes, options);
  folder.write(all, results, before);
  return all;
}

}  // namespace gradual::lab
