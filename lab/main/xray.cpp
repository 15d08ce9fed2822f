// gradual-lab xray: trains with one recipe up to a step, and X-rays the scales of blocks of this step.
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/support/error.h>
#include <gradual/inspect/block_xray.h>
#include <gradual/lab/studied_step.h>
#include <gradual/lab/study_report.h>

#include "../layer_kinds.h"
#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {
int xray_command(int argc, char** argv) {
  StudyArguments a;
  std::string folder;
  std::string name = "mxfp4";
  std::string csv;
  OptionParser app(
      "Trains with a recipe that has scales of blocks, and says of one step what the scales clip and lose, and what\n"
      "another rule or size of block would have given on the same numbers.\n",
      "xray");
  app.add_option("folder", folder, kFolderHelp);
  app.add_option("--recipe", name, "a name, FILE.json or FILE.json:NAME").capture_default_str();
  a.declare(app);
  app.add_option("--csv", csv, "write each rule and size of each operand to this file");
  bool wide = false;
  app.add_flag("--wide", wide, kWideHelp);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  const FolderRecipes from(folder);
  from.give(a, app, {name});
  a.check(app);
  const amp::Recipe recipe = from.one("--recipe", name);
  const MakeModel make = a.make_model(app);
  XrayedStep step(make, a.task(), recipe, a.options);
  say(stdout, "{} on {}, step {}, loss {:.6g}\n", recipe.name, a.data, a.options.step, step.loss);
  say_text(layers_with_kinds(step.study.model()) + step.blocks.to_string(layer_names(step.study.model())), wide);
  if (!csv.empty()) write_file_atomically(csv, step.blocks.to_csv());
  return 0;
}

}  // namespace gradual::lab
