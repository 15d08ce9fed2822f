// gradual-lab explain: the smallest set of things that must be exact so that a run's failure does not come.
#include <fmt/format.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/files/input_file.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/explain.h>
#include <gradual/lab/folder.h>
#include <gradual/lab/run.h>
#include <gradual/lab/verdict.h>

#include <algorithm>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

struct Arguments {
  TaskArguments task;
  std::string folder, recipe, out, apply;
  std::int64_t seed = 0;
  Options options;
  int threads = 0;
  bool wide = false;
};

const Result& run_of(const std::vector<Result>& results, const std::string& recipe, std::int64_t seed) {
  for (const Result& r : results)
    if (r.recipe == recipe && r.seed == seed) return r;
  std::string known;
  for (const Result& r : results) known += fmt::format("{}{} (seed {})", known.empty() ? "" : ", ", r.recipe, r.seed);
  throw_error(fmt::format("explain: the folder has no run of '{}' with seed {}; it has {}", recipe, seed, known));
}

// Runs a file's change again, and says whether the losses have the same bits.
int apply(const Arguments& a, const amp::Recipe& recipe, Trials& trials) {
  const Replayable r = replayable_from_json(read_file(a.apply), a.apply);
  check_applies(r, a.apply, recipe, static_cast<std::uint64_t>(a.seed));
  if (r.losses.empty()) throw_error("explain: " + a.apply + " holds no losses to compare with");
  const std::vector<double> again = trials.losses(r.change, static_cast<std::int64_t>(r.losses.size()));
  const bool same =
      std::ranges::equal(again, r.losses, [](double x, double y) { return x == y || (x != x && y != y); });
  say(stdout, "{}: {} steps, the last loss is {:.9g}; {}\n", a.apply, again.size(), again.empty() ? 0 : again.back(),
      same ? "all losses have the same bits" : "the losses differ from the file's");
  return same ? 0 : 1;
}

}  // namespace

// Error unless a replay with these options has the settings of the run.
static void check_settings(const Result& run, const amp::Recipe& recipe, Options options) {
  if (settings(recipe, options) == run.settings) return;
  options.lr = 0;  // the optimizer's own
  const std::string now = settings(recipe, options);
  if (now != run.settings)
    throw_error("explain: the run had other settings; give explain the same options: " +
                differences(run.settings, now));
}

int explain_command(int argc, char** argv) {
  Arguments a;
  OptionParser app(
      "Replays a failed run of a results folder with single things exact (operands, sums, results, ops, updates) and\n"
      "all else to the same bits. Finds the smallest set, and its steps, with which the failure does not come.\n",
      "explain");
  app.add_option("folder", a.folder, "of a comparison, with fp32");
  app.add_option("--recipe", a.recipe, "the recipe whose run is explained");
  app.add_option("--seed", a.seed, "of the run").capture_default_str();
  a.task.declare(app);
  app.add_option("--explain-steps", a.options.explain_steps, "steps of all trials (default: as many as the run has)");
  app.add_option("--out", a.out, "write the set as JSON, for --apply");
  app.add_option("--apply", a.apply, "replay what --out wrote, and compare the losses bit by bit");
  app.add_flag("--wide", a.wide, kWideHelp);
  declare_threads(app, a.threads);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  if (a.folder.empty() || a.recipe.empty())
    throw_error("explain takes a folder and --recipe (see " + program_name() + " explain --help)");
  std::vector<Result> results = load_results(a.folder);
  judge(results);
  const Result& run = run_of(results, a.recipe, a.seed);
  if (!run.origin.program.empty()) a.task.take(app, run.origin);
  a.task.read(app);
  use_threads(app, a.threads);
  const Result* fp32 = baseline(results, {}, run);
  if (!fp32) throw_error("explain: the folder has no run of fp32 with this seed");
  const amp::Recipe recipe = amp::recipe_from_json(run.definition);
  const LabData data = a.task.task();
  const data::Split sample = data.load(0);
  const MakeModel make = a.task.make_model(sample.train, data.model);
  a.options.model_name = run.model;
  a.options.epochs = static_cast<int>(fp32->epochs);
  a.options.batch = run.batch;
  a.options.lr = run.lr;
  a.options.optimizer = run.optimizer;
  if (app.count("--epochs")) a.options.epochs = a.task.epochs;
  if (app.count("--batch")) a.options.batch = a.task.batch;
  if (app.count("--lr")) a.options.lr = a.task.lr;
  if (app.count("--optimizer")) a.options.optimizer = a.task.optimizer;
  a.options.loss = a.task.loss;
  a.options.metric = a.task.metric;
  a.options.training = a.task.training;
  a.options.device = a.task.device;
  check_settings(run, recipe, a.options);
  const auto seed = static_cast<std::uint64_t>(a.seed);
  if (!a.apply.empty()) {
    Trials trials(make, data, recipe, seed, a.options, run, *fp32, 0);
    return apply(a, recipe, trials);
  }
  const Explanation e = explain_run(make, data, recipe, seed, a.options, run, *fp32);
  say_text(fmt::format("{}, seed {}: {}\n{}", run.recipe, a.seed, to_string(run.verdict), to_string(e)), a.wide);
  if (!a.out.empty() && e.averts) write_file_atomically(a.out, to_json(e, recipe, seed));
  return 0;
}

}  // namespace gradual::lab
