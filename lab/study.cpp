#include "study.h"

#include "../core/support/throwf.h"

namespace gradual::lab {

Study::Study(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, const StudyOptions& options)
    : generator_(options.seed), scope_(generator_), data_(data.load(options.seed)), model_(make_model()) {
  if (data_.train.size() == 0) throwf("a study: the data '{}' have no training samples", data.name);
  if (options.step < 0) throwf("a study's step is {}; it must be at least 0", options.step);
  run_.emplace(recipe, *model_, optim::AdamWOptions{.lr = options.lr}, amp::RunOptions{.seed = options.seed});
  data::DataLoader loader(data_.train, {.batch = options.batch, .shuffle = true, .seed = options.seed});
  optim::Scheduler schedule(run_->optimizer(), optim::cosine(loader.size() * options.epochs));
  for (std::int64_t k = 0;; ++k) {
    if (!loader.next(batch_)) loader.next(batch_);  // the next epoch
    if (k == options.step) return;
    step();
    schedule.step();
  }
}

Tensor Study::loss(nn::Module& model) const { return classification_loss(model(batch_.inputs), batch_.targets); }

amp::RunStep Study::step() {
  return run_->step([&] { return loss(); });
}

}  // namespace gradual::lab
