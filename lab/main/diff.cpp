// gradual-lab diff: the same step under two recipes.
#include <fmt/format.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/support/error.h>
#include <gradual/inspect/diff.h>

#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

// The step under a recipe, of a model that was trained with another recipe.
struct Side {
  std::shared_ptr<nn::Module> model;
  std::optional<amp::RecipeRun> run;
  std::optional<inspect::Shadow> shadow;
};

void observe(Side& side, const amp::Recipe& recipe, const MakeModel& make, const StudyArguments& a, Study& trained) {
  default_generator().manual_seed(a.options.seed);
  side.model = make();
  side.model->load_state_dict(trained.run().master_state_dict());
  side.run.emplace(recipe, *side.model, make_optimizer(a.options.optimizer, a.options.lr, a.options.training.rates),
                   amp::RunOptions{.seed = a.options.seed});
  // Takes over histories, loss scale and moments, if they are this recipe's own.
  if (trained.run().recipe().name == recipe.name) side.run->load_state_dict(trained.run().state_dict());
  side.shadow.emplace(*side.model, &side.run->optimizer(), inspect::ShadowOptions{.attribution = true});
  default_generator().manual_seed(a.options.seed);
  const ObserverScope scope(*side.shadow);
  side.run->backward(side.run->forward([&] { return trained.loss(*side.model); }));
}

}  // namespace

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
  const MakeModel make = a.make_model();
  Study trained(make, a.task(), trained_by.empty() ? two[0] : one_recipe("--trained-by", trained_by), a.options);
  Side sides[2];
  for (std::size_t i = 0; i < 2; ++i) observe(sides[i], two[i], make, a, trained);
  const inspect::ShadowDiff diff(*sides[0].shadow, *sides[1].shadow);
  say(stdout, "step {}\n{}", a.options.step, diff.to_string(two[0].name, two[1].name));
  if (!csv.empty()) write_file_atomically(csv, diff.to_csv());
  return 0;
}

}  // namespace gradual::lab
