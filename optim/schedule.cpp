#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "../core/support/throwf.h"

namespace gradual::optim {

static void need_steps(const char* what, std::int64_t steps) {
  if (steps < 1) throwf("{}: needs at least one step, given {}", what, steps);
}

// f(share of `steps` that has passed, 0 to 1).
template <class F> static Schedule over(const char* what, std::int64_t steps, F f) {
  need_steps(what, steps);
  return [=](std::int64_t step) { return f(static_cast<double>(std::min(step, steps)) / static_cast<double>(steps)); };
}

Schedule step_decay(std::int64_t every, double gamma) {
  need_steps("step_decay", every);
  return [=](std::int64_t step) { return std::pow(gamma, static_cast<double>(step / every)); };
}

Schedule multi_step(std::vector<std::int64_t> milestones, double gamma) {
  std::sort(milestones.begin(), milestones.end());
  return [milestones = std::move(milestones), gamma](std::int64_t step) {
    const auto reached = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    return std::pow(gamma, static_cast<double>(reached));
  };
}

Schedule cosine(std::int64_t steps, double min_factor) {
  return over("cosine", steps,
              [=](double part) { return min_factor + (1 - min_factor) * (1 + std::cos(std::numbers::pi * part)) / 2; });
}

Schedule linear_warmup(std::int64_t steps, double start_factor) {
  return over("linear_warmup", steps, [=](double part) { return start_factor + (1 - start_factor) * part; });
}

Schedule chain(Schedule first, std::int64_t steps, Schedule second) {
  if (steps < 0) throwf("chain: {} steps; allowed are 0 and more", steps);
  return [first = not_null(std::move(first), "chain: the first schedule"), steps,
          second = not_null(std::move(second), "chain: the second schedule")](std::int64_t step) {
    return step < steps ? first(step) : second(step - steps);
  };
}

Scheduler::Scheduler(Optimizer& optimizer, Schedule schedule)
    : optimizer_(&optimizer), schedule_(not_null(std::move(schedule), "Scheduler: the schedule")) {
  apply();
}

void Scheduler::apply() {
  auto& groups = optimizer_->param_groups();
  while (initial_.size() < groups.size()) {
    const auto& lr = groups[initial_.size()].lr;
    if (!lr) throwf("Scheduler: group {} of the optimizer has no lr to multiply", initial_.size());
    initial_.push_back(*lr);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) groups[g].lr = initial_[g] * factor();
}

StateDict Scheduler::state_dict() const {
  StateDict out;
  out.set("steps", steps_);
  out.set("groups", initial_.size());
  for (std::size_t g = 0; g < initial_.size(); ++g) out.set(fmt::format("initial_lr.{}", g), initial_[g]);
  return out;
}

void Scheduler::load_state_dict(const StateDict& state) {
  std::vector<double> initial(state.natural("groups"));
  if (initial.size() > optimizer_->param_groups().size())
    throwf("load_state_dict: the schedule has {} groups, the optimizer {}", initial.size(),
           optimizer_->param_groups().size());
  for (std::size_t g = 0; g < initial.size(); ++g) initial[g] = state.real(fmt::format("initial_lr.{}", g));
  steps_ = static_cast<std::int64_t>(state.natural("steps"));
  initial_ = std::move(initial);
  apply();
}

Plateau::Plateau(Optimizer& optimizer, const PlateauOptions& o)
    : optimizer_(&optimizer),
      options_(o),
      best_(o.maximize ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity()) {
  if (!(o.factor > 0 && o.factor < 1)) throwf("Plateau: factor is {}; it must be above 0 and below 1", o.factor);
  if (o.patience < 0 || o.cooldown < 0)
    throwf("Plateau: patience {} and cooldown {}; both must be at least 0", o.patience, o.cooldown);
  if (!(o.threshold >= 0 && o.min_lr >= 0 && o.eps >= 0))
    throwf("Plateau: threshold {}, min_lr {} and eps {}; they must be at least 0", o.threshold, o.min_lr, o.eps);
}

bool Plateau::improves(double metric) const {
  const double sign = options_.maximize ? 1 : -1;
  // As PyTorch: best * (1 - threshold) or best * (1 + threshold).
  const double bound = options_.absolute ? best_ + sign * options_.threshold : best_ * (1 + sign * options_.threshold);
  return options_.maximize ? metric > bound : metric < bound;
}

bool Plateau::reduce() {
  bool lowered = false;
  for (ParamGroup& group : optimizer_->param_groups()) {
    if (!group.lr) throw_error("Plateau: a group of the optimizer has no lr to multiply");
    const double lr = std::max(*group.lr * options_.factor, options_.min_lr);
    if (*group.lr - lr <= options_.eps) continue;
    group.lr = lr;
    lowered = true;
  }
  return lowered;
}

bool Plateau::step(double metric) {
  if (improves(metric)) {
    best_ = metric;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (waiting_ > 0) {
    --waiting_;
    bad_ = 0;
  }
  if (bad_ <= options_.patience) return false;
  waiting_ = options_.cooldown;
  bad_ = 0;
  return reduce();
}

StateDict Plateau::state_dict() const {
  StateDict out;
  out.set("best", best_);
  out.set("bad", bad_);
  out.set("waiting", waiting_);
  return out;
}

void Plateau::load_state_dict(const StateDict& state) {
  const double best = state.real("best");
  const std::int64_t bad = state.integer("bad");
  waiting_ = state.integer("waiting");
  best_ = best;
  bad_ = bad;
}

}  // namespace gradual::optim
