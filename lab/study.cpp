#include "study.h"

#include <cstdint>

#include "../core/support/throwf.h"

namespace gradual::lab {

Study::Study(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, const StudyOptions& options)
    : generator_(options.seed),
      scope_(generator_),
      data_(data.load(options.seed)),
      objective_(objective_of(data, options.loss, {})),
      device_(options.device),
      accumulate_(options.training.accumulate),
      model_(make_model()) {
  if (data_.train.size() == 0) throwf("a study: the data '{}' have no training samples", data.name);
  if (options.step < 0) throwf("a study's step is {}; it must be at least 0", options.step);
  model_->to(device_);
  const auto batch_of = [train = data_.train, augment = data.augment](const std::vector<std::int64_t>& samples) {
    const data::Batch batch = data::take(train, samples);
    return augment ? augment(batch) : batch;
  };
  data::DataLoader loader(
      data_.train.size(), batch_of,
      data::DataLoaderOptions{.batch = options.batch, .shuffle = true, .seed = options.seed, .device = device_});
  steps_ = loader.size() * options.epochs;
  if (options.step >= steps_)
    throwf("a study's step is {}; the training has {} steps ({} epochs of {}), the last is {}", options.step, steps_,
           options.epochs, loader.size(), steps_ - 1);
  run_.emplace(recipe, *model_, make_optimizer(options.optimizer, options.lr, options.training.rates),
               amp::RunOptions{.clip_norm = options.training.clip, .seed = options.seed, .steps = steps_});
  optim::Scheduler schedule(run_->optimizer(), schedule_for(options.training, steps_));
  for (std::int64_t k = 0;; ++k) {
    if (!loader.next(batch_)) {
      evaluate();
      loader.next(batch_);  // the next epoch
    }
    if (k == options.step) return;
    step();
    schedule.step();
  }
}

// As the run does at the end of an epoch, for the random numbers that this draws. Ends after the first batch if it
// draws none.
void Study::evaluate() {
  const Evaluation evaluation(objective_, data_.test.size(), false);
  data::DataLoader test(data_.test, {.batch = evaluation.batch(), .device = device_, .prefetch = false});
  model_->eval();
  data::Batch batch;
  while (test.next(batch)) {
    const std::uint64_t before = generator_.stream();
    run_->evaluate([&] { return outputs_of(*model_, batch, !objective_.loss.is_output()).all[0]; });
    if (generator_.stream() == before) break;
  }
  model_->train();
}

Tensor Study::loss_on(const data::Batch& batch, nn::Module& model) const {
  return loss_of(objective_.loss, outputs_of(model, batch, !objective_.loss.is_output()));
}
Tensor Study::loss(nn::Module& model) const { return loss_on(batch_, model); }

amp::RunStep Study::step() {
  if (accumulate_ > 1)
    return accumulated_step(*run_, batch_, accumulate_, [&](const data::Batch& part) { return loss_on(part); });
  return run_->step([&] { return loss(); });
}

}  // namespace gradual::lab
