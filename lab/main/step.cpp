// gradual-lab step: one step of a training under the tools of inspect/.
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/support/error.h>
#include <gradual/inspect/block_xray.h>
#include <gradual/inspect/gradient_sites.h>
#include <gradual/inspect/ledger.h>
#include <gradual/inspect/shadow.h>
#include <gradual/inspect/update_meter.h>

#include <cmath>
#include <filesystem>

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
  Study study(a.study.make_model(), a.study.task(), recipe, a.study.options);
  std::optional<inspect::GradientSites> sites;
  if (recipe.quantization || recipe.mode == amp::Mode::autocast)
    sites = inspect::gradient_sites(
        recipe, study.model(), [&] { return study.loss(); }, study.run().quantization());
  inspect::Ledger ledger(study.model());
  inspect::Shadow shadow(study.model(), &study.run().optimizer(), {.attribution = true});
  inspect::UpdateMeter meter(study.model());
  inspect::XrayObserver blocks(study.model());
  const double loss = [&] {
    const ObserverScope one(ledger), two(shadow), three(meter), four(blocks);
    return study.step().loss.item();
  }();
  if (!std::isfinite(loss))
    throw_error(
        fmt::format("the loss of {} at step {} is {}; an earlier --step can be studied, and gradual-lab --recipes "
                    "fp32,{} says why the run diverges",
                    recipe.name, a.study.options.step, loss, recipe.name));
  say(stdout, "{}, step {}\n\nThe loss, and the ops whose errors move it\n{}", recipe.name, a.study.options.step,
      to_string(shadow.attribution()));
  say(stdout, "\nWho loses the bits\n{}", shadow.by_layer());
  if (sites) say(stdout, "\nWhat each site alone does to the gradients\n{}", to_string(*sites));
  say(stdout, "\nThe updates\n{}", meter.to_string());
  if (!blocks.sites().empty()) say(stdout, "\nThe scales of blocks\n{}", blocks.to_string());
  if (a.ledger) say(stdout, "\nLedger\n{}", ledger.to_string());
  if (a.shadow) say(stdout, "\nShadow\n{}", shadow.to_string());
  if (a.out.empty()) return;
  std::filesystem::create_directories(a.out);
  const auto write = [&](const char* file, const std::string& text) {
    write_file_atomically(a.out + "/" + file, text);
  };
  write("ledger.csv", ledger.to_csv());
  write("ledger.jsonl", ledger.to_jsonl());
  write("shadow.csv", shadow.to_csv());
  write("updates.csv", meter.to_csv());
  if (sites) write("gradients.csv", to_csv(*sites));
  if (!blocks.sites().empty()) write("blocks.csv", blocks.to_csv());
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
