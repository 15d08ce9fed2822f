// gradual-lab xray: trains with one recipe up to a step, and X-rays the scales of blocks of that step.
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/support/error.h>
#include <gradual/data/data_loader.h>
#include <gradual/inspect/block_xray.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/models.h>
#include <gradual/lab/tasks.h>
#include <gradual/optim/schedule.h>

#include "command_line.h"
#include "commands.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

struct Arguments {
  std::string recipe = "mxfp4", model, data = "digits", csv, jsonl;
  std::int64_t step = 50, context = 0, batch = 64;
  std::uint64_t seed = 0;
  bool all = false;
};

// The step of the lab's own run of this recipe, seed and batch, with its other settings left as they are by default.
inspect::XrayObserver observed(const Arguments& a, const amp::Recipe& recipe) {
  const data::Split split = data_for(a.data, a.context).load(a.seed);
  const bool text = split.train.inputs.dtype() == DType::i64;
  Generator generator(a.seed);
  const GeneratorScope scope(generator);
  const auto model = model_for(a.model.empty() ? (text ? "gpt" : "cnn") : a.model, split.train)();
  amp::RecipeRun run(recipe, *model, optim::AdamWOptions{.lr = 2e-3}, {.seed = a.seed});
  data::DataLoader loader(split.train, {.batch = a.batch, .shuffle = true, .seed = a.seed});
  optim::Scheduler schedule(run.optimizer(), optim::cosine(loader.size() * Options().epochs));
  inspect::XrayObserver xrays(*model);
  for (std::int64_t step = 0; step <= a.step; ++step) {
    data::Batch batch;
    if (!loader.next(batch)) loader.next(batch);
    std::optional<ObserverScope> observing;
    if (step == a.step) observing.emplace(xrays);
    const amp::RunStep done = run.step([&] { return classification_loss((*model)(batch.inputs), batch.targets); });
    if (step == a.step) say(stdout, "{} on {}, step {}, loss {:.6g}\n", recipe.name, a.data, step, done.loss.item());
    schedule.step();
  }
  return xrays;
}

}  // namespace

int xray_command(int argc, char** argv) {
  Arguments a;
  CLI::App app(
      "Trains with a recipe that has scales of blocks, and says of one step what the scales clip and lose, and what\n"
      "another rule or size of block would have given on the same numbers.\n",
      "gradual-lab xray");
  app.add_option("--recipe", a.recipe, "a name or FILE.json")->capture_default_str();
  app.add_option("--step", a.step, "the step that is X-rayed, from 0")->capture_default_str();
  app.add_option("--model", a.model, "mlp, cnn or gpt (default: cnn for images, gpt for text)");
  app.add_option("--data", a.data, "digits, mnist:DIR, text:FILE or addition")->capture_default_str();
  app.add_option("--context", a.context, "characters in a window of text:FILE (default: 64)");
  app.add_option("--batch", a.batch, "samples per step")->capture_default_str();
  app.add_option("--seed", a.seed, "of parameters, batches and rounding")->capture_default_str();
  app.add_flag("--all", a.all, "print each rule and size of each operand");
  app.add_option("--csv", a.csv, "write them to this file");
  app.add_option("--jsonl", a.jsonl, "write them to this file as JSON Lines");
  if (const std::optional<int> status = parse(app, argc, argv)) return *status;
  if (a.step < 0) throw_error(fmt::format("--step is {}; it must be at least 0", a.step));
  at_least_one("--batch", a.batch);
  const std::vector<amp::Recipe> recipes = recipes_for(a.recipe);
  if (recipes.size() != 1) throw_error("--recipe is '" + a.recipe + "', which names more than one");
  const inspect::XrayObserver xrays = observed(a, recipes[0]);
  if (xrays.sites().empty())
    throw_error("recipe '" + recipes[0].name +
                "' has no scales of blocks; mxfp8, mxfp6, mxfp4, nvfp4 and fp8-block128 have");
  if (a.all)
    for (const auto& site : xrays.sites())
      say(stdout, "{} of layer {}: {}\n", site.operand, site.layer, to_string(site.xray));
  say(stdout, "{}", xrays.to_string());
  if (!a.csv.empty()) write_file_atomically(a.csv, xrays.to_csv());
  if (!a.jsonl.empty()) write_file_atomically(a.jsonl, xrays.to_jsonl());
  return 0;
}

}  // namespace gradual::lab
