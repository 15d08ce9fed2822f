// gradual-lab sweep: trains all combinations of some choices, and says which one matters given which.
#include <fmt/format.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/files/input_file.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/throwf.h>
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
  bool explains = false;
  for (const auto& [name, value] : part.options) {
    words.push_back("--" + name);
    if (!value.empty()) words.push_back(value);
    explains = explains || name == "explain-steps";
  }
  words.insert(words.end(), {"--recipes", recipes_file(a, part), "--out", (fs::path(a.out) / part.name).string()});
  words.insert(words.end(), {"--jobs", std::to_string(a.jobs)});
  // Nobody reads why each of many combinations failed.
  if (!explains) words.insert(words.end(), {"--explain-steps", "0"});
  if (a.quiet) words.emplace_back("--quiet");
  if (fs::exists(fs::path(a.out) / part.name)) words.emplace_back("--resume");
  return words;
}

void write_tables(const Arguments& a, const SweepResult& result, const std::vector<SweepPart>& parts) {
  write_file_atomically((fs::path(a.out) / "sweep.html").string(), sweep_html(result, parts));
  write_file_atomically((fs::path(a.out) / "effects.json").string(), to_json(result));
  for (const TextTable& t : tables_of(result)) {
    write_file_atomically((fs::path(a.out) / (t.name + ".csv")).string(), to_csv(t));
    const fs::path tex = fs::path(a.out) / (t.name + ".tex");
    if (a.latex) write_file_atomically(tex.string(), to_latex(t));
    else fs::remove(tex);  // of an earlier call, with other numbers
  }
}

std::string resuming(const Arguments& a) {
  return fmt::format("{} sweep {} --out {} --jobs {} --resume", shell_word(program_called()), shell_word(a.file),
                     shell_word(a.out), a.jobs);
}

// Error naming the file for options that gradual-lab refuses.
void check_parts(const Arguments& a, const std::vector<SweepPart>& parts) {
  for (const SweepPart& part : parts) {
    try {
      check_training(words_of(a, part));
    } catch (const Error& e) { throwf("{}, options{}: {}", a.file, options_text(part), e.what()); }
  }
}

// Trains the parts. None on a rank other than the first, and after a signal.
std::optional<std::vector<std::vector<Result>>> train_parts(const Arguments& a, const std::vector<SweepPart>& parts,
                                                            dist::Communicator& ranks) {
  std::vector<std::vector<std::string>> words;  // by what is there before any rank begins
  for (const SweepPart& part : parts) words.push_back(words_of(a, part));
  ranks.barrier();
  std::vector<std::vector<Result>> all;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (ranks.rank() == 0 && !a.quiet)
      say(stderr, "{} of {}:{}\n", parts[p].name, parts.size(), options_text(parts[p]));
    std::optional<Comparison> trained = train_as(words[p], ranks);
    if (ranks.any(stop_signal() != 0)) return std::nullopt;
    if (trained) all.push_back(std::move(trained->results));
  }
  if (ranks.rank() > 0) return std::nullopt;
  return all;
}

int sweep(const Arguments& a, dist::Communicator& ranks) {
  const Sweep sweep = sweep_from_json(read_file(a.file), a.file);
  const std::vector<SweepPart> parts = parts_of(sweep);
  check_parts(a, parts);
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
  write_tables(a, result, parts);
  say_text(to_string(result), a.wide);
  say(stdout, "\nresults: {} (sweep.html, effects.json, *.csv, part-N/report.html)\n", a.out);
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
