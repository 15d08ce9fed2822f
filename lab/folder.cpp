#include "folder.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "../core/files/atomic_file.h"
#include "../core/files/input_file.h"
#include "../core/support/error.h"
#include "run.h"

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFinished = "/checkpoints/finished.json";
constexpr const char* kFiles[] = {"/results.json", "/runs.csv", "/curves.csv", "/report.html", kFinished};

// The run among the results; their end: it is not there.
auto find_run(std::vector<Result>& results, const Result& run) {
  return std::ranges::find_if(results, [&](const Result& r) {
    return r.recipe == run.recipe && r.seed == run.seed && r.model == run.model && r.data == run.data;
  });
}

}  // namespace

std::string run_file(const std::string& recipe, std::uint64_t seed) {
  std::string text = recipe + "-seed" + std::to_string(seed);
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  return text + ".safetensors";
}

Existing existing(const Options& o) {
  return o.resume ? Existing::resume : o.overwrite ? Existing::overwrite : Existing::refuse;
}

Folder::Folder(std::string path, Existing existing) : path_(std::move(path)) {
  if (path_.empty()) return;
  if (existing == Existing::refuse)
    for (const char* file : {"/results.json", kFinished})
      if (fs::is_regular_file(path_ + file))
        throw_error("the folder " + path_ +
                    " holds the results of an earlier comparison; choose another, replace them "
                    "(overwrite) or continue (resume)");
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
  return path_.empty() ? "" : path_ + "/checkpoints/" + run_file(recipe, seed);
}

void Folder::write(const std::vector<Result>& results, const std::vector<Result>& unlisted) const {
  if (path_.empty()) return;
  write_file_atomically(path_ + "/results.json", results_json(results, false));
  write_file_atomically(path_ + "/runs.csv", runs_csv(results));
  write_file_atomically(path_ + "/curves.csv", curves_csv(results));
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
  for (const std::string& one : shared_results()) all.push_back(results_from_json(read_file(one), one).at(0));
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
    if (is_finished(r, recipe, seed, o, data) && r.settings == settings(recipe, o)) return &r;
  return nullptr;
}

std::vector<Result> load_results(const std::string& folder) {
  const std::string file = folder + "/results.json", whole = folder + kFinished;
  if (!fs::is_regular_file(file)) throw_error("the folder " + folder + " holds no results.json of a comparison");
  std::vector<Result> results = results_from_json(read_file(file), file);
  if (!fs::is_regular_file(whole)) return results;
  for (Result& run : results_from_json(read_file(whole), whole))
    if (const auto at = find_run(results, run); at != results.end() && at->status == run.status) *at = std::move(run);
  return results;
}

}  // namespace gradual::lab
