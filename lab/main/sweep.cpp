// gradual-lab sweep: trains all combinations of some choices, and says which one matters given which.
#include <fmt/format.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/files/input_file.h>
#include <gradual/core/support/error.h>
#include <gradual/dist/communicator.h>
#include <gradual/lab/folder_lock.h>
#include <gradual/lab/sweep.h>
#include <gradual/lab/tables.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "terminal.h"
#include "train.h"

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string file;
  std::string out;
  std::string by = "metric";
  int jobs = 1;
  bool resume = false;
  bool overwrite = false;
  bool latex = false;
  bool quiet = false;
  bool wide = false;
};

void declare_options(OptionParser& app, Arguments& a) {
  app.add_option("FILE", a.file, "the sweep as JSON: a recipe, options and factors (docs/sweep.md)").required();
  app.add_option("--out", a.out, "folder of the results (default: gradual-lab-out/NAME of FILE)");
  app.add_option("--by", a.by, "what is explained: the metric on the test data, or the test loss")
      .one_of({"loss", "metric"})
      .capture_default_str();
  app.add_option("--jobs", a.jobs, "processes that share out the runs, each with its share of the threads")
      .capture_default_str();
  app.add_flag("--resume", a.resume, "continue a sweep that was interrupted");
  app.add_flag("--overwrite", a.overwrite, "replace the results of an earlier sweep in --out");
  app.add_flag("--latex", a.latex, "write the tables for the package booktabs too");
  app.add_flag("--quiet", a.quiet, "no progress, only the tables");
  app.add_flag("--wide", a.wide, kWideHelp);
}

// The file that keeps what the folder is a sweep of.
fs::path kept(const Arguments& a) { return fs::path(a.out) / "sweep.json"; }

// Makes the folder ready: new, emptied, or of the same sweep.
void begin(const Arguments& a, const Sweep& sweep) {
  const bool there = fs::exists(kept(a));
  if (there && !a.resume && !a.overwrite)
    throw_error(a.out + " holds a sweep already; --resume goes on with it, and --overwrite replaces it");
  if (there && a.resume && read_file(kept(a).string()) != sweep.text)
    throw_error(fmt::format("{} was begun by another file than {}, see {}", a.out, a.file, kept(a).string()));
  if (there && a.overwrite)
    for (const fs::directory_entry& entry : fs::directory_iterator(a.out))
      if (entry.path().filename().string().starts_with("part-")) fs::remove_all(entry.path());
  write_file_atomically(kept(a).string(), sweep.text);
}

std::string recipes_file(const Arguments& a, const SweepPart& part) {
  return (fs::path(a.out) / (part.name + ".recipes.json")).string();
}

// The command line of a part. It can be given by hand, too.
std::vector<std::string> words_of(const Arguments& a, const SweepPart& part) {
  std::vector<std::string> words = {program_called()};
  words.insert(words.end(), part.options.begin(), part.options.end());
  words.insert(words.end(), {"--recipes", recipes_file(a, part), "--out", (fs::path(a.out) / part.name).string()});
  // Nobody reads why each of many combinations failed.
  words.insert(words.end(), {"--explain-steps", "0", "--jobs", std::to_string(a.jobs)});
  if (a.quiet) words.emplace_back("--quiet");
  if (fs::exists(fs::path(a.out) / part.name)) words.emplace_back("--resume");
  return words;
}

void write_tables(const Arguments& a, const SweepResult& result) {
  write_file_atomically((fs::path(a.out) / "effects.json").string(), to_json(result));
  for (const TextTable& t : tables_of(result)) {
    write_file_atomically((fs::path(a.out) / (t.name + ".csv")).string(), to_csv(t));
    if (a.latex) write_file_atomically((fs::path(a.out) / (t.name + ".tex")).string(), to_latex(t));
  }
}

std::string resuming(const Arguments& a) {
  return fmt::format("{} sweep {} --out {} --jobs {} --resume", shell_word(program_called()), shell_word(a.file),
                     shell_word(a.out), a.jobs);
}

// Trains the parts. None on a rank other than the first, and after a signal.
std::optional<std::vector<std::vector<Result>>> train_parts(const Arguments& a, const std::vector<SweepPart>& parts,
                                                            dist::Communicator& ranks) {
  std::vector<std::vector<Result>> all;
  for (const SweepPart& part : parts) {
    if (ranks.rank() == 0 && !a.quiet)
      say(stderr, "{} of {}: {}\n", part.name, parts.size(), fmt::join(part.options, " "));
    std::optional<Comparison> trained = train_as(words_of(a, part), ranks);
    if (ranks.any(stop_signal() != 0)) return std::nullopt;
    if (trained) all.push_back(std::move(trained->results));
  }
  if (ranks.rank() > 0) return std::nullopt;
  return all;
}

int sweep(const Arguments& a, dist::Communicator& ranks) {
  const Sweep sweep = sweep_from_json(read_file(a.file), a.file);
  const std::vector<SweepPart> parts = parts_of(sweep);
  for (const SweepPart& part : parts) check_training(words_of(a, part));
  std::optional<FolderLock> lock;
  if (ranks.rank() == 0) {
    lock.emplace(a.out);
    begin(a, sweep);
    for (const SweepPart& part : parts) amp::save_recipes(recipes_file(a, part), part.recipes);
  }
  ranks.barrier();
  const auto results = train_parts(a, parts, ranks);
  if (ranks.rank() > 0) return 0;
  if (!results) {
    say(stdout, "interrupted; to continue:\n    {}\n", wrapped_command(resuming(a), 76, "        "));
    return 128 + stop_signal();
  }
  const SweepMeasure by = a.by == "loss" ? SweepMeasure::loss : SweepMeasure::metric;
  const SweepResult result = sweep_result(sweep, *results, by);
  write_tables(a, result);
  say_text(to_string(result), a.wide);
  say(stdout, "\nresults: {} (effects.json, terms.csv, effects.csv, combinations.csv, a report in each part-N)\n",
      a.out);
  return 0;
}

}  // namespace

int sweep_command(int argc, char** argv) {
  Arguments a;
  OptionParser app(
      "Trains all combinations of some choices (formats, roundings, rates, models, ..), with several seeds, and says\n"
      "how much of what differs each choice explains, alone and given another one.\n",
      "sweep");
  declare_options(app, a);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  if (a.resume && a.overwrite) throw_error("--resume and --overwrite exclude each other");
  at_least_one("--jobs", a.jobs);
  if (a.out.empty()) a.out = (fs::path("gradual-lab-out") / fs::path(a.file).stem()).string();
  if (a.out.find(',') != std::string::npos)
    throw_error("--out is '" + a.out + "'; the folder of a sweep has no comma in its name");
  return dist::run([&](dist::Communicator& ranks) { return sweep(a, ranks); });
}

}  // namespace gradual::lab
