#include "folder.h"

#include <algorithm>
#include <climits>
#include <filesystem>
#include <string_view>

#include "../core/files/atomic_file.h"
#include "../core/files/checkpoint_file.h"
#include "../core/files/input_file.h"
#include "../core/support/throwf.h"
#include "objective.h"
#include "pairs.h"
#include "run.h"

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFinished = "/checkpoints/finished.json";
constexpr const char* kFiles[] = {"/results.json", "/runs.csv",    "/curves.csv", "/monitors.csv",
                                  "/pairs.csv",    "/report.html", kFinished};

// The run among the results; their end: it is not there.
auto find_run(std::vector<Result>& results, const Result& run) {
  return std::ranges::find_if(results, [&](const Result& r) {
    return r.recipe == run.recipe && r.seed == run.seed && r.model == run.model && r.data == run.data;
  });
}

constexpr std::string_view kInFileNames = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-.";

std::string with_seed(const std::string& name, std::uint64_t seed) {
  return fmt::format("{}-seed{}.safetensors", name, seed);
}

// As earlier versions named it: 'a/b' and 'a:b' share a file.
std::string earlier_run_file(const std::string& recipe, std::uint64_t seed) {
  std::string name = recipe;
  for (char& c : name)
    if (kInFileNames.find(c) == std::string_view::npos) c = '_';
  return with_seed(name, seed);
}

// The recipe of the run that wrote a checkpoint; empty: it is none.
std::string recipe_of(const std::string& checkpoint) {
  try {
    const Checkpoint c = load_checkpoint(checkpoint);
    return results_from_json(c.part("lab").text("result"), checkpoint).at(0).recipe;
  } catch (const std::exception&) { return ""; }
}

}  // namespace

std::string run_file(const std::string& recipe, std::uint64_t seed) {
  std::string name;
  for (const char c : recipe) {
    if (c == '_' || kInFileNames.find(c) != std::string_view::npos) name += c;
    else name += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return with_seed(name, seed);
}

void check_file_names(const std::vector<amp::Recipe>& recipes, int seeds) {
  constexpr std::string_view kLongestSuffix = ".explain.lock";  // lab/share.cpp
  constexpr std::size_t kMost = NAME_MAX - kLongestSuffix.size();
  for (const amp::Recipe& r : recipes)
    if (const std::size_t bytes = run_file(r.name, static_cast<std::uint64_t>(seeds)).size(); bytes > kMost)
      throwf("lab: the recipe name '{}..' of {} bytes gives files whose names have {} bytes; at most {} are allowed",
             r.name.substr(0, 40), r.name.size(), bytes, kMost);
}

Existing existing(const Options& o) {
  if (o.resume) return Existing::resume;
  return o.overwrite ? Existing::overwrite : Existing::refuse;
}

Folder::Folder(std::string path, Existing existing) : path_(std::move(path)) {
  if (path_.empty()) return;
  if (existing == Existing::refuse)
    for (const char* file : {"/results.json", kFinished})
      if (fs::is_regular_file(path_ + file))
        throw_error("the folder " + path_ +
                    " holds the results of an earlier comparison; choose another, replace them "
                    "(--overwrite) or continue (--resume)");
  std::error_code error;
  fs::create_directories(path_ + "/checkpoints", error);
  if (error) throw_error("cannot make the folder " + path_ + "/checkpoints: " + error.message());
  for (const char* file : kFiles) static_cast<void>(AtomicFile(path_ + file));  // fails now, not after the first run
}

void Folder::clear() const {
  if (path_.empty()) return;
  for (const char* file : kFiles) fs::remove(path_ + file);
  for (const auto& entry : fs::directory_iterator(path_ + "/checkpoints"))
    if (entry.path().extension() == ".safetensors") fs::remove(entry.path());
  for (const std::string& file : shared_results()) fs::remove(file);
}

std::vector<std::string> Folder::shared_results() const {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(path_ + "/checkpoints"))
    if (entry.path().extension() == ".result") files.push_back(entry.path().string());
  return files;
}

std::string Folder::checkpoint(const std::string& recipe, std::uint64_t seed) const {
  if (path_.empty()) return "";
  const std::string folder = path_ + "/checkpoints/";
  const std::string path = folder + run_file(recipe, seed);
  const std::string earlier = folder + earlier_run_file(recipe, seed);
  if (earlier != path && !fs::exists(path) && fs::exists(earlier) && recipe_of(earlier) == recipe)
    fs::rename(earlier, path);
  return path;
}

void Folder::write(const std::vector<Result>& results, const std::vector<Result>& unlisted) const {
  if (path_.empty()) return;
  write_file_atomically(path_ + "/results.json", results_json(results, false));
  write_file_atomically(path_ + "/runs.csv", runs_csv(results));
  write_file_atomically(path_ + "/curves.csv", curves_csv(results));
  write_file_atomically(path_ + "/monitors.csv", monitors_csv(results));
  if (!results.empty())
    write_file_atomically(path_ + "/pairs.csv", pairs_csv(recipe_pairs(results), results.front().metric));
  write_file_atomically(path_ + "/report.html", report_html(results));
  std::vector<Result> known = results;
  for (const Result& u : unlisted)
    if (find_run(known, u) == known.end()) known.push_back(u);
  write_file_atomically(path_ + kFinished, results_json(known, true));
  for (const std::string& file : shared_results()) fs::remove(file);  // finished() read them
}

std::vector<Result> Folder::finished() const {
  const std::string file = path_ + kFinished;
  std::vector<Result> all = fs::exists(file) ? results_from_json(read_file(file), file) : std::vector<Result>();
  for (const std::string& one : shared_results()) {
    Result newer = results_from_json(read_file(one), one).at(0);
    if (const auto at = find_run(all, newer); at != all.end()) *at = std::move(newer);
    else all.push_back(std::move(newer));
  }
  return all;
}

bool is_finished(const Result& r, const amp::Recipe& recipe, std::uint64_t seed, const Options& o,
                 const LabData& data) {
  return r.recipe == recipe.name && r.seed == static_cast<std::int64_t>(seed) && r.model == o.model_name &&
         r.data == data.name && r.status != Status::interrupted;
}

const Result* finished_run(const std::vector<Result>& results, const amp::Recipe& recipe, std::uint64_t seed,
                           const Options& o, const LabData& data) {
  for (const Result& r : results)
    if (is_finished(r, recipe, seed, o, data) && r.settings == settings(recipe, o) &&
        r.metric == objective_of(data, o.loss, o.metric).info)
      return &r;
  return nullptr;
}

std::vector<Result> load_results(const std::string& folder) {
  const std::string file = folder + "/results.json";
  const std::string whole = folder + kFinished;
  if (!fs::is_regular_file(file)) throw_error("the folder " + folder + " holds no results.json of a comparison");
  std::vector<Result> results = results_from_json(read_file(file), file);
  if (!fs::is_regular_file(whole)) return results;
  for (Result& run : results_from_json(read_file(whole), whole))
    if (const auto at = find_run(results, run); at != results.end() && at->status == run.status) *at = std::move(run);
  return results;
}

}  // namespace gradual::lab
