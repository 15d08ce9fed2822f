// gradual-lab tolerance: how far two correct implementations of a training step may differ.
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/files/safetensors.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/tolerance.h>

#include <optional>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {

int tolerance_command(int argc, char** argv) {
  StudyArguments study;
  SplitArguments split;
  ToleranceOptions options;
  std::string folder;
  std::string recipe = "fp32";
  std::string json;
  std::string golden;
  OptionParser app(
      "Trains with one recipe up to a step, and says of each activation, gradient and update of that step how far two\n"
      "correct implementations may differ: a bound for every order and grouping of every sum, a probable one, and\n"
      "what sampled orders differ by.\n",
      "tolerance");
  app.add_option("folder", folder, kFolderHelp);
  app.add_option("--recipe", recipe, "a name, FILE.json or FILE.json:NAME").capture_default_str();
  study.declare(app);
  split.declare(app);
  app.add_option("--orders", options.orders, "orders to sample").capture_default_str();
  app.add_option("--parts", options.parts,
                 "split each sum of products into so many parts that are added in order; 0: 1, 2, 4 or 8 at random")
      .capture_default_str();
  app.add_option("--json", json, "write each tensor's tolerance to this file");
  app.add_option("--golden", golden,
                 "write the numbers of exact sums, and a tolerance for each element, to this .safetensors file");
  app.add_flag("--norms", options.of_norms, "also say how far theory is from the samples that knows only norms");
  bool all = false;
  app.add_flag("--all", all, "print the gradients of activations and the casts, too");
  bool wide = false;
  app.add_flag("--wide", wide, kWideHelp);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  at_least(1, "--orders", options.orders);
  at_least(0, "--parts", options.parts);
  const FolderRecipes from(folder);
  from.give(study, app, {recipe});
  study.check(app);
  const amp::Recipe chosen = from.one("--recipe", recipe);
  const MakeModel make = study.make_model(app);
  options.study = study.options;
  options.split = split.read(app);
  const Tolerances found = tolerance(make, study.task(), chosen, options);
  say_text(to_string(found, all), wide);
  if (!json.empty()) write_file_atomically(json, to_json(found));
  if (!golden.empty()) save_safetensors(golden, golden_of(found));
  return 0;
}

}  // namespace gradual::lab
