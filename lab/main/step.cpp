// gradual-lab step: one step of a training under the tools of inspect/.
#include <gradual/lab/study_report.h>

#include <optional>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {

int step_command(int argc, char** argv) {
  StudyArguments study;
  std::string folder;
  std::string recipe = "fp8-current";
  StepReportOptions report;
  OptionParser app(
      "Trains with one recipe up to a step, and shows that step: which ops' errors move the loss, which layers lose\n"
      "the bits, what each site does to the gradients, and how much of each update arrives.\n",
      "step");
  app.add_option("folder", folder, kFolderHelp);
  app.add_option("--recipe", recipe, "a name, FILE.json or FILE.json:NAME").capture_default_str();
  study.declare(app);
  app.add_flag("--ledger", report.ledger, "print a row for each op: counts and ranges");
  app.add_flag("--shadow", report.shadow, "print a row for each op: local, inherited and total errors");
  app.add_option("--out", report.folder,
                 "folder for ledger, shadow, updates, gradients and blocks as CSV, and ledger.jsonl");
  bool wide = false;
  app.add_flag("--wide", wide, kWideHelp);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  const FolderRecipes from(folder);
  from.give(study, app, {recipe});
  study.check(app);
  const amp::Recipe chosen = from.one("--recipe", recipe);
  const MakeModel make = study.make_model(app);
  say_text(step_report(make, study.task(), chosen, study.options, report), wide);
  return 0;
}

}  // namespace gradual::lab
