#include "grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "../core/dispatch.h"
#include "../core/failf.h"
#include "../core/ops.h"

namespace gradual::optim {

std::int64_t StepResult::nonfinite() const { return found_.defined() ? found_[0].item<std::int64_t>() : 0; }

std::optional<std::size_t> StepResult::index() const {
  if (applied()) return {};
  const auto counts = found_.to_vector<std::int64_t>();
  const auto first = std::find_if(counts.begin() + 1, counts.end(), [](std::int64_t n) { return n > 0; });
  return static_cast<std::size_t>(first - counts.begin()) - 1;
}

std::string StepResult::param() const {
  const auto i = index();
  return i ? optimizer_->param_name(*i) : std::string();
}

GradScaler::GradScaler(GradScalerOptions o)
    : options_(o), scale_(static_cast<float>(o.init_scale)), hysteresis_tracker_(o.hysteresis) {
  if (!o.enabled) return;
  const auto need = [](bool ok, const char* what) {
    if (!ok) fail(std::string("GradScaler: ") + what);
  };
  need(o.growth_factor > 1 && std::isfinite(o.growth_factor), "growth_factor must be above 1");
  need(o.backoff_factor > 0 && o.backoff_factor < 1, "backoff_factor must be between 0 and 1");
  need(o.growth_interval >= 1, "growth_interval must be at least 1");
  need(o.hysteresis >= 1, "hysteresis must be at least 1");
  need(o.min_scale >= 0x1p-126 && o.min_scale <= o.max_scale && o.max_scale <= std::numeric_limits<float>::max(),
       "min_scale must be at least 2^-126 (its inverse is finite) and max_scale finite and not below it");
  need(o.init_scale >= o.min_scale && o.init_scale <= o.max_scale,
       "init_scale must lie between min_scale and max_scale");
  history_.push_back({0, static_cast<double>(scale_)});
}

void GradScaler::set_scale(double value) {
  const auto clamped = static_cast<float>(std::clamp(value, options_.min_scale, options_.max_scale));
  if (clamped == scale_) return;
  scale_ = clamped;
  history_.push_back({updates_, static_cast<double>(scale_)});
}

GradScaler::PerOptimizer& GradScaler::of(const Optimizer& optimizer) {
  const auto found = std::ranges::find(optimizers_, &optimizer, &PerOptimizer::optimizer);
  return found != optimizers_.end() ? *found : optimizers_.emplace_back(PerOptimizer{&optimizer, Stage::ready, {}});
}

void GradScaler::need_scale(const char* what) const {
  if (!used_) failf("GradScaler: {}: no scale yet: scale(loss) was not used earlier in the iteration", what);
}

Tensor GradScaler::scale(const Tensor& loss, SourceLocation loc) {
  if (!options_.enabled) return loss;
  used_ = true;
  return mul({loss, loc}, static_cast<double>(scale_));
}

void GradScaler::check(PerOptimizer& o, Optimizer& optimizer, bool write) const {
  const Tensor found = zeros({static_cast<std::int64_t>(optimizer.param_count()) + 1}, {.dtype = DType::i64});
  if (optimizer.unscale(found, inverse(), write) > 0) o.found = found;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  need_scale("unscale_");
  PerOptimizer& o = of(optimizer);
  if (o.stage == Stage::unscaled)
    fail("GradScaler: unscale_() has already been called on this optimizer since the last update()");
  if (o.stage == Stage::stepped) fail("GradScaler: unscale_() is being called after step()");
  check(o, optimizer, true);
  o.stage = Stage::unscaled;
}

StepResult GradScaler::step(Optimizer& optimizer, SourceLocation loc) {
  if (!options_.enabled) {
    optimizer.step(loc);
    return {};
  }
  need_scale("step");
  PerOptimizer& o = of(optimizer);
  if (o.stage == Stage::stepped) fail("GradScaler: step() has already been called since the last update()");
  const bool unscaled = o.stage == Stage::unscaled;
  if (!unscaled) check(o, optimizer, false);
  if (!o.found.defined()) fail("GradScaler: step: no inf checks were recorded for this optimizer");
  StepResult result(optimizer, o.found);
  if (result.applied()) {
    optimizer.step_scaled(unscaled ? 1 : inverse(), loc);
  } else {
    optimizer.forget_unscaled();
  }
  o.stage = Stage::stepped;
  return result;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  need_scale("update");
  bool checked = false, overflow = false;
  for (const PerOptimizer& o : optimizers_) {
    checked = checked || o.found.defined();
    overflow = overflow || (o.found.defined() && o.found[0].item<std::int64_t>() > 0);
  }
  if (!new_scale && !checked) fail("GradScaler: update: no inf checks were recorded prior to update");
  if (new_scale && !(*new_scale >= options_.min_scale && *new_scale <= options_.max_scale))
    failf("GradScaler: update: the new scale {} does not lie between min_scale and max_scale", *new_scale);
  optimizers_.clear();
  ++updates_;
  if (new_scale) return set_scale(*new_scale);
  if (!options_.dynamic) return;
  if (overflow) {
    growth_tracker_ = 0;
    // Once used up, the patience comes back only with a clean step.
    hysteresis_tracker_ = std::max(hysteresis_tracker_ - 1, 0);
    if (hysteresis_tracker_ == 0) set_scale(static_cast<double>(scale_) * options_.backoff_factor);
    return;
  }
  hysteresis_tracker_ = options_.hysteresis;
  if (++growth_tracker_ < options_.growth_interval) return;
  growth_tracker_ = 0;
  const double grown = static_cast<double>(scale_) * options_.growth_factor;
  if (std::isfinite(static_cast<float>(grown))) set_scale(grown);
}

// What a state dict holds: f(name, member) for each.
template <class Self, class F> void GradScaler::for_state(Self& self, const F& f) {
  f("scale", self.scale_);
  f("growth_factor", self.options_.growth_factor);
  f("backoff_factor", self.options_.backoff_factor);
  f("growth_interval", self.options_.growth_interval);
  f("growth_tracker", self.growth_tracker_);
  f("hysteresis", self.options_.hysteresis);
  f("hysteresis_tracker", self.hysteresis_tracker_);
  f("updates", self.updates_);
}

StateDict GradScaler::state_dict() const {
  StateDict out;
  if (options_.enabled) for_state(*this, [&](const char* name, auto value) { out.set(name, value); });
  return out;
}

void GradScaler::load_state_dict(const StateDict& state) {
  if (!options_.enabled) return;
  if (state.empty()) fail("GradScaler: load_state_dict: the source state is empty; it was saved by a disabled scaler");
  GradScaler loaded = *this;
  for_state(loaded, [&]<class T>(const char* name, T& value) {
    if constexpr (std::is_floating_point_v<T>) value = static_cast<T>(state.real(name));
    else value = static_cast<T>(state.integer(name));
  });
  GradScalerOptions o = loaded.options_;
  o.init_scale = state.real("scale");
  static_cast<void>(GradScaler(o));  // its checks
  loaded.optimizers_.clear();
  loaded.history_ = {{loaded.updates_, o.init_scale}};
  *this = std::move(loaded);
}

}  // namespace gradual::optim
