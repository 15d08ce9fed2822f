// gradual-lab diff: the same step under two recipes.
#include <fmt/format.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/study_report.h>

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
  std::string trained_by;
  DiffReportOptions report;
  OptionParser app(
      "Runs the same step (parameters, batch, random numbers) under two recipes, and names the first op whose error\n"
      "departs and the layers that make the losses differ. The recipe that has not trained starts without histories\n"
      "of amaxes and with its first loss scale.\n",
      "diff");
  app.add_option("recipes", names,
                 "two recipes, each a name, FILE.json or FILE.json:NAME; before them the folder of results that has "
                 "them, if any")
      .expected(-1);
  app.add_option("--trained-by", trained_by, "the recipe that trains up to the step (default: the first)");
  a.declare(app);
  app.add_option("--csv", report.csv, "write a line for each pair of ops to this file");
  bool wide = false;
  app.add_flag("--wide", wide, kWideHelp);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  if (names.size() != 2 && names.size() != 3)
    throw_error(fmt::format("diff takes two recipes, not {} (see {} diff --help)", names.size(), program_name()));
  const FolderRecipes from(names.size() == 3 ? names.front() : "");
  from.give(a, app, {names[names.size() - 2], names.back(), trained_by});
  a.check(app);
  const amp::Recipe first = from.one("the first recipe", names[names.size() - 2]);
  const amp::Recipe second = from.one("the second recipe", names.back());
  std::optional<amp::Recipe> trainer;
  if (!trained_by.empty()) report.trained_by = &trainer.emplace(from.one("--trained-by", trained_by));
  const MakeModel make = a.make_model(app);
  say_text(diff_report(make, a.task(), first, second, a.options, report), wide);
  return 0;
}

}  // namespace gradual::lab
