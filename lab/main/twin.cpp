// gradual-lab twin: the same weights under a recipe that trains and one that samples or serves.
#include <fmt/format.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/twin.h>
#include <gradual/nn/key_value_cache.h>

#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {

int twin_command(int argc, char** argv) {
  StudyArguments a;
  a.last_step = true;
  SplitArguments split;
  TwinOptions options;
  std::vector<std::string> names;
  std::string csv;
  std::string cache;
  OptionParser app(
      "Trains with the first recipe, and gives the test data to the trained weights under both: how far the\n"
      "probabilities of a sampler or server with the second recipe are from the learner's, by position of a sequence,\n"
      "by layer, and by the experts that its tokens go to.\n",
      "twin");
  app.add_option("recipes", names,
                 "the learner's and the sampler's recipe, each a name, FILE.json or FILE.json:NAME; before them the "
                 "folder of results that has them, if any")
      .expected(-1);
  a.declare(app);
  split.declare(app);
  app.add_option("--samples", options.samples, "samples of the test data, at most").capture_default_str();
  app.add_option(
      "--cache", cache,
      "format of the sampler's cache of keys and values, for --model gpt: up to 8 bits with a scale for each "
      "token of a head; without it the sampler reads whole sequences");
  bool without_layers = false;
  app.add_flag("--no-layers", without_layers, "without the table of layers, which needs a shadow of a step");
  app.add_option("--csv", csv, "write a line per position to this file");
  std::string routes;
  app.add_option("--routes", routes, "write a line per layer with a router to this file");
  bool wide = false;
  app.add_flag("--wide", wide, kWideHelp);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  if (names.size() != 2 && names.size() != 3)
    throw_error(fmt::format("twin takes two recipes, not {} (see {} twin --help)", names.size(), program_name()));
  const FolderRecipes from(names.size() == 3 ? names.front() : "");
  from.give(a, app, {names[names.size() - 2], names.back()});
  a.check(app);
  const amp::Recipe learner = from.one("the learner's recipe", names[names.size() - 2]);
  const amp::Recipe sampler = from.one("the sampler's recipe", names.back());
  const MakeModel make = a.make_model(app);
  options.study = a.options;
  options.split = split.read(app);
  options.layers = !without_layers;
  if (!cache.empty()) options.cache = nn::cache_quantizer(cache);
  const Twins twins = twin(make, a.task(), learner, sampler, options);
  say_text(to_string(twins), wide);
  if (!csv.empty()) write_file_atomically(csv, to_csv(twins));
  if (!routes.empty()) write_file_atomically(routes, routes_csv(twins));
  return 0;
}

}  // namespace gradual::lab
