#include "studied_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "../amp/learned_scales.h"
#include "../core/support/error.h"
#include "../core/support/generator.h"
#include "../core/support/rounding_draws.h"
#include "../core/support/throwf.h"
#include "layer_kinds.h"

namespace gradual::lab {

StudiedStep::StudiedStep(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                         const StudyOptions& options)
    : study(make_model, data, recipe, options),
      step(options.step),
      layers(layer_names(study.model())),
      ledger(study.model()),
      shadow(study.model(), &study.run().optimizer(), {.attribution = true}),
      updates(study.model()),
      blocks(study.model()) {
  if (recipe.quantization || recipe.mode == amp::Mode::autocast)
    sites = inspect::gradient_sites(
        study.run().recipe_now(), study.model(), [&] { return study.loss(); }, study.run().quantization());
  {
    const ObserverScope one(ledger);
    const ObserverScope two(shadow);
    const ObserverScope three(updates);
    const ObserverScope four(blocks);
    loss = study.step().loss.item();
  }
  if (!std::isfinite(loss))
    throwf(
        "the loss of {} at step {} is {}; an earlier --step can be studied, and a comparison with fp32 says why the "
        "run diverges",
        recipe.name, step, std::isnan(loss) ? std::fabs(loss) : loss);
}

StudiedStep study_step(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                       const StudyOptions& options) {
  return {make_model, data, recipe, options};
}

std::string to_string(const StudiedStep& s) {
  const inspect::LayerNames& name = s.layers;
  std::string text =
      fmt::format("The loss, and the ops whose errors move it\n{}", to_string(s.shadow.attribution(), 12, name));
  text += fmt::format("\nWho loses the bits\n{}", s.shadow.by_layer(name));
  if (s.sites) text += fmt::format("\nWhat each site alone does to the gradients\n{}", to_string(*s.sites, 20, name));
  text += fmt::format("\nThe updates\n{}", s.updates.to_string(name));
  if (!s.blocks.sites().empty()) text += fmt::format("\nThe scales of blocks\n{}", s.blocks.to_string(name));
  return text;
}

TwinSide::TwinSide(const amp::Recipe& recipe, const MakeModel& make_model, const StudyOptions& options,
                   Study& trained) {
  default_generator().manual_seed(options.seed);
  model = make_model();
  model->to(options.device);
  model->load_state_dict(amp::without_foreign_steps(trained.run().master_state_dict(), *model));
  // Another recipe's schedule is where this step has it; its own one comes with the state.
  const bool own = amp::to_json(trained.run().recipe()) == amp::to_json(recipe);
  if (!own && std::ranges::any_of(recipe.schedule, [](const amp::Phase& p) { return p.when.has_value(); }))
    throwf(
        "recipe '{}' has a phase with `when`, which only its own training begins; '{}' trained up to step {}; let {} "
        "train, or give the recipe of the phase",
        recipe.name, trained.run().recipe().name, options.step, recipe.name);
  run.emplace(own ? recipe : amp::recipe_in_step(recipe, options.step, trained.steps()), *model,
              make_optimizer(options.optimizer, options.lr, options.training.rates),
              amp::RunOptions{.seed = options.seed, .steps = trained.steps()});
  // Takes over histories, loss scale and moments, if they are this recipe's own.
  if (own) run->load_state_dict(trained.run().state_dict());
}

void TwinSide::observe_loss(const StudyOptions& options, Study& trained) {
  shadow.emplace(*model, &run->optimizer(), inspect::ShadowOptions{.attribution = true});
  default_generator().manual_seed(options.seed);
  const RoundingDraws apart(default_generator().state());  // both sides have the same dropout
  const ObserverScope scope(*shadow);
  run->backward(run->forward([&] { return trained.loss(*model); }));
}

DiffedStep::DiffedStep(const MakeModel& make_model, const LabData& data, const amp::Recipe& a, const amp::Recipe& b,
                       const amp::Recipe& trained_by, const StudyOptions& options)
    : trained_(make_model, data, trained_by, options),
      a_(a, make_model, options, trained_),
      b_(b, make_model, options, trained_) {
  a_.observe_loss(options, trained_);
  b_.observe_loss(options, trained_);
  diff_.emplace(*a_.shadow, *b_.shadow);
}

DiffedStep diff_step(const MakeModel& make_model, const LabData& data, const amp::Recipe& a, const amp::Recipe& b,
                     const amp::Recipe& trained_by, const StudyOptions& options) {
  return {make_model, data, a, b, trained_by, options};
}

XrayedStep::XrayedStep(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                       const StudyOptions& options)
    : study(make_model, data, recipe, options), blocks(study.model()) {
  {
    const ObserverScope scope(blocks);
    loss = study.step().loss.item();
  }
  if (blocks.sites().empty())
    throw_error("recipe '" + recipe.name +
                "' has no scales of blocks; mxfp8, mxfp6, mxfp4, nvfp4 and fp8-block128 have");
}

XrayedStep xray_step(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                     const StudyOptions& options) {
  return {make_model, data, recipe, options};
}

}  // namespace gradual::lab
