// Observing a run: a replay from its start, and steps after its end.
#include <algorithm>
#include <cmath>

#include "../inspect/block_xray.h"
#include "../inspect/shadow.h"
#include "run.h"

namespace gradual::lab {

std::string Run::first_nonfinite() const {
  for (const auto& [name, tensor] : model_->named_parameters())
    if (!inspect::numbers_of(tensor).finite()) return name;
  for (const auto& [name, tensor] : model_->named_buffers())
    if (!inspect::numbers_of(tensor).finite()) return name;
  return "";
}

amp::RunStep Run::observed_step(const std::function<amp::RunStep()>& step, const data::Batch& batch,
                                inspect::ObservedStep& observed) {
  observed.ledger.clear();
  observed.finite_batch = inspect::numbers_of(batch.inputs).finite();
  observed.bad_tensor = first_nonfinite();
  const ObserverScope scope(observed.ledger);
  amp::RunStep outcome = step();
  observed.skipped = outcome.result.skipped();
  return outcome;
}

bool Run::replayed() const {
  return replay_ && steps_ > 0 && (steps_ > replay_last_ || (replay_->nonfinite && !replay_->skipped));
}

void Run::observe_errors(Result& result) {
  data::Batch batch;
  if (result_.status == "diverged" || !(loader_->next(batch) || loader_->next(batch))) return;
  const GeneratorScope scope(generator_);
  inspect::Shadow shadow(*model_, &run_->optimizer(), {.attribution = true});
  inspect::XrayObserver blocks(*model_, false);
  {
    const ObserverScope one(shadow), two(blocks);
    run_->step([&] { return classification_loss((*model_)(batch.inputs), batch.targets); });
  }
  result.errors = step_errors(shadow, steps_), result.blocks = block_maps(blocks);
}

inspect::Evidence Run::evidence() {
  inspect::Evidence e{.recipe = &recipe_, .steps = steps_, .skipped = result_.skipped_steps};
  const auto& scale = result_.curve.scale;
  for (std::size_t i = 1; i < scale.size(); ++i) e.growths += scale[i] > scale[i - 1];
  for (const double loss : result_.curve.loss)
    if (std::isfinite(loss)) e.rise = std::max(e.rise, loss / result_.curve.loss[0]);
  if (result_.status != "diverged") {
    const GeneratorScope scope(generator_);
    e.late = inspect::ObservedStep{.step = steps_, .ledger = inspect::Ledger(*model_)};
    const amp::PrecisionObserver watch(casts_, recipe_);
    data::Batch batch;
    for (int i = 0; i < 2 && (loader_->next(batch) || loader_->next(batch)); ++i)
      observed_step(
          [&] { return run_->step([&] { return classification_loss((*model_)(batch.inputs), batch.targets); }); },
          batch, *e.late);
  }
  e.casts = casts_;
  for (const auto& [name, update] : updates_) e.updates.push_back(update);
  for (const auto& [path, module] : model_->named_modules()) e.layers.push_back(path);
  return e;
}

std::optional<inspect::ObservedStep> Run::replay(std::int64_t first, std::int64_t last, bool evaluate) {
  inspect::ObservedStep r{.ledger = inspect::Ledger(*model_)};
  replay_ = &r;
  replay_first_ = first, replay_last_ = last;
  Progress progress{.recipe = recipe_};
  train("", progress);
  if (stop_asked_ && !replayed()) return {};
  if (evaluate && !r.nonfinite) {
    const GeneratorScope scope(generator_);
    r.ledger.clear();
    r.evaluation = true, r.bad_tensor = first_nonfinite();
    r.finite_batch = inspect::numbers_of(data_.test.inputs).finite();
    const ObserverScope observe(r.ledger);
    end_epoch(progress);
    r.nonfinite = !std::isfinite(result_.test_loss);
  }
  return r;
}

}  // namespace gradual::lab
