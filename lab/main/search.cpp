// gradual-lab search: the cheapest assignment of formats to layers whose result is within the noise of fp32.
#include <fmt/format.h>
#include <gradual/lab/folder_lock.h>
#include <gradual/lab/narrow.h>
#include <gradual/lab/search.h>

#include <string>
#include <string_view>

#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

struct Arguments {
  SearchOptions search;
  StudyArguments study;
  std::string folder;
  std::string formats = "mxfp4,nvfp4,mxfp8,bf16,fp32";
  std::string cost = "bits";
  std::string out = "gradual-lab-search";
  bool overwrite = false;
  bool wide = false;
};

// One line of a trial; the assignment stands below it where both do not fit.
std::string trial_line(const Search& s, const Trial& t, bool wide) {
  std::string_view end = t.passes ? "passes" : "fails";
  if (t.passes && !t.is_certain) end = "passes, not certain";
  if (t.assignment.empty()) end = "";  // fp32
  const std::string measured = fmt::format(
      "[{:>3} trainings] {:<9} {:<6} cost {:5.1f}%  {:+.2f} {}, loss {:+.2g} (noise {:.2g})", s.trainings, t.why, end,
      100 * t.cost, t.points, s.metric.is_share() ? "points" : "%", t.loss_change, t.loss_noise);
  const std::string assignment = s.to_string(t.assignment);
  if (wide || measured.size() + assignment.size() + 2 <= kColumns) return measured + "  " + assignment + "\n";
  return narrowed(measured + "\n" + std::string(16, ' ') + assignment + "\n");
}

void declare_options(OptionParser& app, Arguments& a) {
  SearchOptions& s = a.search;
  app.add_option("folder", a.folder, "of results: its data, model and options are searched for");
  app.add_option("--formats", a.formats, "fp32 and quantised recipes; bf16 is e8m7").capture_default_str();
  app.add_option("--cost", a.cost, "bits (of operands, times multiplications), kept (bytes for backward) or moved")
      .capture_default_str();
  app.add_flag("--attention", s.attention, "also search the formats of the numbers inside of attention");
  app.add_option("--within", s.within, "points of accuracy, or percent of another metric, that may be lost")
      .capture_default_str();
  app.add_option("--noise", s.noise, "standard deviations of fp32's loss that the loss may rise; 0: any")
      .capture_default_str();
  app.add_option("--trainings", s.trainings, "most trainings of search and proof").capture_default_str();
  app.add_option("--seeds", s.run.seeds, "seeds of each trial").capture_default_str();
  app.add_option("--unseen", s.unseen, "other seeds, of the proof and the comparison").capture_default_str();
  app.add_option("--random", s.random, "random assignments of equal cost to compare with").capture_default_str();
  a.study.declare(app);
  app.option("--step").description("the step of --seed whose errors estimate the harm of formats, from 0");
  app.add_option("--out", a.out, "folder for recipe.json, trials.csv and front.svg").capture_default_str();
  app.add_flag("--overwrite", a.overwrite, "replace these files");
  app.add_flag("--wide", a.wide, kWideHelp);
}

}  // namespace

int search_command(int argc, char** argv) {
  Arguments a;
  OptionParser app(
      "Searches for the cheapest format of each layer with which training ends as it does in fp32, and proves the\n"
      "result on seeds that the search never saw.\n",
      "search");
  declare_options(app, a);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  at_least_one("--seeds", a.search.run.seeds);
  FolderRecipes(a.folder).give(a.study, app, {});
  a.study.check(app);
  a.search.cost = inspect::cost_from_name(a.cost);
  a.search.formats = split_names(a.formats);
  for (std::string& name : a.search.formats)
    if (name == "bf16") name = "e8m7";
  const LabData data = a.study.task();
  const MakeModel make = a.study.make_model(app);
  Options& run = a.search.run;
  a.search.step = a.study.options;
  run.epochs = a.study.options.epochs;
  run.batch = a.study.options.batch;
  run.lr = a.study.options.lr;
  run.optimizer = a.study.options.optimizer;
  run.loss = a.study.options.loss;
  run.metric = a.study.metric;
  run.training = a.study.options.training;
  run.device = a.study.device;
  const FolderLock lock(a.out);
  begin_search(a.out, a.overwrite);
  stop_on_signals();
  run.stop = [] { return stop_signal() != 0; };
  a.search.trial = [&](const Search& s) {
    save_search(a.out, s);
    say(stderr, "{}", trial_line(s, s.trials.back(), a.wide));
  };
  const Search s = search(make, data, a.search);
  save_search(a.out, s);
  say_text(fmt::format("\n{}\n{}: recipe.json, trials.csv and front.svg\n", to_string(s), a.out), a.wide);
  if (s.stopped) say(stdout, "interrupted; these are the trials so far\n");
  return s.stopped ? 128 + stop_signal() : 0;
}

}  // namespace gradual::lab
