// The folder of a comparison: results.json, runs.csv, curves.csv, monitors.csv, report.html, and checkpoints/.
#pragma once

#include <string>
#include <vector>

#include "lab.h"

namespace gradual::lab {

// What becomes of the results that a folder holds already.
enum class Existing : std::uint8_t { refuse, resume, overwrite };

Existing existing(const Options& options);
// RECIPE-seedN.safetensors, for files of one run: a name for each recipe and seed. Bytes other than ASCII letters,
// digits, '-', '.' and '_' become %XX, their code: "fp16-static%3A1024-seed0.safetensors".
std::string run_file(const std::string& recipe, std::uint64_t seed);
// Error for a name that is too long for run_file() with any of so many seeds.
void check_file_names(const std::vector<amp::Recipe>& recipes, int seeds);

class Folder {
 public:
  // Makes the folder. Error if it is not writable, or holds results that `existing` refuses. "": no folder.
  Folder(std::string path, Existing existing);
  // Removes the files of an earlier comparison.
  void clear() const;
  // The path of a run's checkpoint. One that an earlier version wrote for this recipe gets this name.
  std::string checkpoint(const std::string& recipe, std::uint64_t seed) const;
  // unlisted: runs of fp32 for the verdicts, and finished runs of earlier calls. They stay known to --resume though
  // this call does not list them.
  void write(const std::vector<Result>& results, const std::vector<Result>& unlisted = {}) const;
  // All runs that have ended, with their curves: of finished.json, and those that processes sharing the runs have
  // written one by one (NAME.result), until write() takes them in. These are newer and replace those.
  std::vector<Result> finished() const;

 private:
  std::vector<std::string> shared_results() const;
  std::string path_;
};

// True if a run of these has ended, with any settings.
bool is_finished(const Result& result, const amp::Recipe& recipe, std::uint64_t seed, const Options& options,
                 const LabData& data);
// The run of these with the same settings that has ended; null: there is none.
const Result* finished_run(const std::vector<Result>& results, const amp::Recipe& recipe, std::uint64_t seed,
                           const Options& options, const LabData& data);

// The results in a folder, also those of earlier versions. Curves and histograms come from checkpoints/finished.json;
// without that file results have none. Error if there is no results.json.
std::vector<Result> load_results(const std::string& folder);

}  // namespace gradual::lab
