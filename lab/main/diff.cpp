// gradual-lab diff: the same step under two recipes.
#include <fmt/format.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/studied_step.h>

#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {
int diff_command(int argc, char** argv) {
  StudyArguments a;
  std::vector<std::string> names;
  std::string csv, trained_by;
  OptionParser app(
      "Runs the same step (parameters, batch, random numbers) under two recipes, and names the first op whose error\n"
      "departs and the layers that make the losses differ. The recipe that has not trained starts without histories\n"
      "of amaxes and with its first loss scale.\n",
      "gradual-lab diff");
  app.add_option("recipes", names, "two recipes, each a name, FILE.json or FILE.json:NAME").expected(-1);
  app.add_option("--trained-by", trained_by, "the recipe that trains up to the step (default: the first)");
  a.declare(app);
  app.add_option("--csv", csv, "write a line for each pair of ops to this file");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  a.check(app);
  if (names.size() != 2)
    throw_error(fmt::format("diff takes two recipes, not {} (see gradual-lab diff --help)", names.size()));
  const amp::Recipe two[] = {one_recipe("the first recipe", names[0]), one_recipe("the second recipe", names[1])};
  const amp::Recipe trainer = trained_by.empty() ? two[0] : one_recipe("--trained-by", trained_by);
  const DiffedStep step = diff_step(a.make_model(), a.task(), two[0], two[1], trainer, a.options);
  const inspect::ShadowDiff& diff = step.diff();
  say(stdout, "step {}\n{}", a.options.step, diff.to_string(two[0].name, two[1].name));
  if (!csv.empty()) write_file_atomically(csv, diff.to_csv());
  return 0;
}

}  // namespace gradual::lab
