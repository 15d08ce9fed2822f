// gradual-lab step: one step of a training under the tools of inspect/.
#include <gradual/core/files/atomic_file.h>
#include <gradual/lab/studied_step.h>

#include <filesystem>
#include <optional>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

struct Arguments {
  StudyArguments study;
  std::string recipe = "fp8-current", out;
  bool ledger = false;
  bool shadow = false;
};

void show(Arguments& a, const amp::Recipe& recipe) {
  const StudiedStep step = study_step(a.study.make_model(), a.study.task(), recipe, a.study.options);
  say(stdout, "{}, step {}\n\n{}", recipe.name, step.step, to_string(step));
  if (a.ledger) say(stdout, "\nLedger\n{}", step.ledger.to_string());
  if (a.shadow) say(stdout, "\nShadow\n{}", step.shadow.to_string());
  if (a.out.empty()) return;
  std::filesystem::create_directories(a.out);
  const auto write = [&](const char* file, const std::string& text) {
    write_file_atomically(a.out + "/" + file, text);
  };
  write("ledger.csv", step.ledger.to_csv());
  write("ledger.jsonl", step.ledger.to_jsonl());
  write("shadow.csv", step.shadow.to_csv());
  write("updates.csv", step.updates.to_csv());
  if (step.sites) write("gradients.csv", to_csv(*step.sites));
  if (!step.blocks.sites().empty()) write("blocks.csv", step.blocks.to_csv());
  say(stdout, "\nfiles: {}\n", a.out);
}

}  // namespace

int step_command(int argc, char** argv) {
  Arguments a;
  OptionParser app(
      "Trains with one recipe up to a step, and shows that step: which ops' errors move the loss, which layers lose\n"
      "the bits, what each site does to the gradients, and how much of each update arrives.\n",
      "gradual-lab step");
  app.add_option("--recipe", a.recipe, "a name, FILE.json or FILE.json:NAME").capture_default_str();
  a.study.declare(app);
  app.add_flag("--ledger", a.ledger, "print a row for each op: counts and ranges");
  app.add_flag("--shadow", a.shadow, "print a row for each op: local, inherited and total errors");
  app.add_option("--out", a.out, "folder for ledger, shadow, updates, gradients and blocks as CSV, and ledger.jsonl");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  a.study.check(app);
  show(a, one_recipe("--recipe", a.recipe));
  return 0;
}

}  // namespace gradual::lab
