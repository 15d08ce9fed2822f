// Learning-rate schedules: plain functions from the number of steps taken to a factor, and the Scheduler that applies
// one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "optimizer.h"

namespace gradual::optim {

// The factor of the initial rates after `step` steps.
using Schedule = std::function<double(std::int64_t step)>;

Schedule step_decay(std::int64_t every, double gamma = 0.1);  // gamma^(step / every)
// gamma^(number of milestones reached).
Schedule multi_step(std::vector<std::int64_t> milestones, double gamma = 0.1);
// From 1 to min_factor along half a cosine in `steps` steps, then min_factor (Loshchilov and Hutter 2017).
Schedule cosine(std::int64_t steps, double min_factor = 0);
// From start_factor to 1 in `steps` equal steps, then 1.
Schedule linear_warmup(std::int64_t steps, double start_factor = 0);
// `first` for `steps` steps, then `second` from its step 0: chain(linear_warmup(100), 100, cosine(900)).
Schedule chain(Schedule first, std::int64_t steps, Schedule second);

// Sets the rate of every group to its initial rate times the schedule's factor: in the constructor, and in each step().
// The initial rate of a group added later is its rate at the next step(). The optimizer must outlive the scheduler.
class Scheduler {
 public:
  Scheduler(Optimizer& optimizer, Schedule schedule);
  void step() {  // call it after the optimizer's step
    ++steps_;
    apply();
  }
  std::int64_t steps() const { return steps_; }
  double factor() const { return schedule_(steps_); }

  // The step count and the initial rates; the schedule itself is code. load sets the optimizer's rates.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  void apply();

  Optimizer* optimizer_;
  Schedule schedule_;
  std::int64_t steps_ = 0;
  std::vector<double> initial_;
};

struct PlateauOptions {
  double factor = 0.1;  // of the rates, above 0 and below 1
  int patience = 10;    // calls without improvement that are accepted; the next one lowers the rates
  // What counts as an improvement: below best * (1 - threshold) or, absolute, below best - threshold.
  double threshold = 1e-4;
  bool absolute = false;
  bool maximize = false;  // larger is better: above best * (1 + threshold) or best + threshold
  int cooldown = 0;       // calls after a reduction that do not count
  double min_lr = 0;
  double eps = 1e-8;  // a smaller change of a rate is left out
};

// Lowers the rates when a metric has stopped improving: PyTorch's ReduceLROnPlateau. The optimizer must outlive it.
class Plateau {
 public:
  explicit Plateau(Optimizer& optimizer, const PlateauOptions& options = {});
  // Call it with a metric of each epoch. NaN is no improvement. Returns whether a rate was lowered.
  bool step(double metric);
  double best() const { return best_; }

  // The best metric and the counts; options are code, and the rates are the optimizer's.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  bool improves(double metric) const;
  bool reduce();

  Optimizer* optimizer_;
  PlateauOptions options_;
  double best_;
  std::int64_t bad_ = 0;      // calls without improvement
  std::int64_t waiting_ = 0;  // calls that are left of the cooldown
};

}  // namespace gradual::optim
