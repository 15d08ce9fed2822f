// gradual-lab xray: trains with one recipe up to a step, and X-rays the scales of blocks of this step.
#include <gradual/core/files/atomic_file.h>
#include <gradual/lab/studied_step.h>

#include <optional>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {
int xray_command(int argc, char** argv) {
  StudyArguments a;
  std::string name = "mxfp4", csv;
  OptionParser app(
      "Trains with a recipe that has scales of blocks, and says of one step what the scales clip and lose, and what\n"
      "another rule or size of block would have given on the same numbers.\n",
      "gradual-lab xray");
  app.add_option("--recipe", name, "a name, FILE.json or FILE.json:NAME").capture_default_str();
  a.declare(app);
  app.add_option("--csv", csv, "write each rule and size of each operand to this file");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  a.check(app);
  const amp::Recipe recipe = one_recipe("--recipe", name);
  const XrayedStep step = xray_step(a.make_model(), a.task(), recipe, a.options);
  say(stdout, "{} on {}, step {}, loss {:.6g}\n", recipe.name, a.data, a.options.step, step.loss);
  say(stdout, "{}", step.blocks.to_string());
  if (!csv.empty()) write_file_atomically(csv, step.blocks.to_csv());
  return 0;
}

}  // namespace gradual::lab
