// One step of a training under the tools of inspect/, for any model: what `gradual-lab step`, `diff` and `xray` show.
//
//   const auto step = lab::study_step(make_model, data, amp::recipe("mxfp4"), {.step = 100});
//   std::puts(to_string(step).c_str());
//
// Each result holds its training and with it the default generator: one at a time per thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "../amp/recipe.h"
#include "../inspect/block_xray.h"
#include "../inspect/diff.h"
#include "../inspect/gradient_sites.h"
#include "../inspect/layer_names.h"
#include "../inspect/ledger.h"
#include "../inspect/shadow.h"
#include "../inspect/update_meter.h"
#include "study.h"

namespace gradual::lab {

// A step and what all observers saw of it.
struct StudiedStep : Pinned {
  StudiedStep(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, const StudyOptions& options);

  Study study;
  std::int64_t step = 0;
  double loss = 0;
  inspect::LayerNames layers;
  std::optional<inspect::GradientSites> sites = {};  // of quantised recipes and of autocast
  inspect::Ledger ledger;
  inspect::Shadow shadow;  // with attribution
  inspect::UpdateMeter updates;
  inspect::XrayObserver blocks;  // no sites without scales of blocks
};
// Trains with the recipe up to a step and observes that step. Error if its loss is not finite.
StudiedStep study_step(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                       const StudyOptions& options = {});
std::string to_string(const StudiedStep& step);

// The weights of a training in a model of its own, under this recipe: the one that trained them or another. Where it is
// the one that trained, histories, loss scale and moments are its own; another begins without.
struct TwinSide : Pinned {
  TwinSide(const amp::Recipe& recipe, const MakeModel& make_model, const StudyOptions& options, Study& trained);
  // Forward and backward of the loss of the study's step under a shadow with attribution, with the random numbers of
  // the seed.
  void observe_loss(const StudyOptions& options, Study& trained);

  std::shared_ptr<nn::Module> model;
  std::optional<amp::RecipeRun> run;
  std::optional<inspect::Shadow> shadow;  // from observe_loss
};

// The same step under two recipes.
class DiffedStep : Pinned {
 public:
  DiffedStep(const MakeModel& make_model, const LabData& data, const amp::Recipe& a, const amp::Recipe& b,
             const amp::Recipe& trained_by, const StudyOptions& options);
  const inspect::ShadowDiff& diff() const { return *diff_; }
  nn::Module& model() { return trained_.model(); }  // the trained one

 private:
  Study trained_;
  TwinSide a_, b_;
  std::optional<inspect::ShadowDiff> diff_;
};
// Trains with `trained_by` up to a step and runs that step under both recipes: parameters, batch and random numbers are
// the same. A recipe that has not trained starts without histories of amaxes and with its first loss scale.
DiffedStep diff_step(const MakeModel& make_model, const LabData& data, const amp::Recipe& a, const amp::Recipe& b,
                     const amp::Recipe& trained_by, const StudyOptions& options = {});

// A step and its scales of blocks.
struct XrayedStep : Pinned {
  XrayedStep(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, const StudyOptions& options);

  Study study;
  double loss = 0;
  inspect::XrayObserver blocks;
};
// Trains with the recipe up to a step and X-rays it. Error if the recipe has no scales of blocks.
XrayedStep xray_step(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                     const StudyOptions& options = {});

}  // namespace gradual::lab
