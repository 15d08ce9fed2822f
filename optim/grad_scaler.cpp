#include "grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../core/tensor/device_recording.h"

namespace gradual::optim {

std::optional<std::size_t> StepResult::index() const {
  if (applied()) return {};
  const auto counts = found_.to_vector<std::int64_t>();
  const auto first = std::find_if(counts.begin() + 1, counts.end() - 1, [](std::int64_t n) { return n > 0; });
  if (first == counts.end() - 1) return {};
  return static_cast<std::size_t>(first - counts.begin()) - 1;
}

std::int64_t StepResult::hidden() const { return found_.defined() ? found_[-1].item<std::int64_t>() : 0; }

GradScaler::GradScaler(GradScalerOptions o)
    : options_(o), state_{.scale = static_cast<float>(o.init_scale), .hysteresis_tracker = o.hysteresis} {
  if (!o.enabled) return;
  const auto need = [](bool ok, const char* name, double value, const std::string& allowed) {
    if (!ok) throwf("GradScaler: {} is {}; it must be {}", name, value, allowed);
  };
  need(o.growth_factor > 1 && std::isfinite(o.growth_factor), "growth_factor", o.growth_factor, "above 1 and finite");
  need(o.backoff_factor > 0 && o.backoff_factor < 1, "backoff_factor", o.backoff_factor, "between 0 and 1");
  need(o.growth_interval >= 1, "growth_interval", static_cast<double>(o.growth_interval), "at least 1");
  need(o.hysteresis >= 1, "hysteresis", o.hysteresis, "at least 1");
  need(o.min_scale >= 0x1p-126, "min_scale", o.min_scale, "at least 2^-126 (its inverse is finite)");
  need(o.max_scale >= o.min_scale && o.max_scale <= std::numeric_limits<float>::max(), "max_scale", o.max_scale,
       "finite and not below min_scale");
  need(o.init_scale >= o.min_scale && o.init_scale <= o.max_scale, "init_scale", o.init_scale,
       fmt::format("from min_scale, {}, to max_scale, {}", o.min_scale, o.max_scale));
  remember();
}

GradScaler::GradScaler(const GradScaler& o) { *this = o; }

GradScaler& GradScaler::operator=(const GradScaler& o) {
  state_ = o.now();  // first: it adds what the GPU did to the history
  options_ = o.options_;
  used_ = o.used_;
  optimizers_ = o.optimizers_;
  history_ = o.history_;
  there_.host_changed();
  return *this;
}

// --- the state on a GPU ----------------------------------------------------------------------------------------------

void GradScaler::upload(void* to, Device device) const {
  const DeviceLossScale fresh{.scale = state_.scale, .inverse = state_.inverse(), .now = state_};
  device::upload(to, device, &fresh, offsetof(DeviceLossScale, history));
  seen_ = 0;
}

void GradScaler::take(const void* bytes) const {
  const auto& read = *static_cast<const DeviceLossScale*>(bytes);
  for (std::int64_t k = std::max(seen_, read.changes - DeviceLossScale::kKept); k < read.changes; ++k)
    history_.push_back(read.history[k % DeviceLossScale::kKept]);
  seen_ = read.changes;
  state_ = read.now;
}

bool GradScaler::scales_on_gpu(const Optimizer& optimizer) {
  const bool on_gpu = there_.in_use() && optimizer.skips_on(there_.memory().device());
  if (!on_gpu) there_.leave();
  else if (!device::capturing()) there_.upload_changes();
  return on_gpu;
}

// --- an iteration ----------------------------------------------------------------------------------------------------

GradScaler::PerOptimizer& GradScaler::of(const Optimizer& optimizer) {
  const auto found = std::ranges::find(optimizers_, &optimizer, &PerOptimizer::optimizer);
  return found != optimizers_.end() ? *found : optimizers_.emplace_back(PerOptimizer{&optimizer, Stage::ready, {}});
}

Tensor GradScaler::scale(const Tensor& loss, SourceLocation loc) {
  if (!options_.enabled) return loss;
  used_ = true;
  const CauseScope cause(causes::loss_scaling);
  if (loss.device().is_cpu()) return mul({loss, loc}, static_cast<double>(now().scale));
  there_.move_to(loss.device(), sizeof(DeviceLossScale));
  const Tensor scale = as_strided(there_.memory(), {}, {}, 0);  // DeviceLossScale::scale
  if (loss.dtype() == DType::f32 || loss.dtype() == DType::f64) return mul({loss, loc}, scale);
  return cast(mul({cast(loss, DType::f32, loc), loc}, scale), loss.dtype(), loc);  // rounded once, as by a number
}

void GradScaler::check(PerOptimizer& o, Optimizer& optimizer, bool write) {
  const GradientScale by = scales_on_gpu(optimizer) ? GradientScale{.on_device = &on_gpu()->inverse}
                                                    : GradientScale{static_cast<double>(now().inverse())};
  const auto last = static_cast<std::int64_t>(optimizer.param_count()) + 1;
  const Tensor found = zeros({last + 1}, {.dtype = DType::i64, .device = optimizer.device()});
  if (optimizer.unscale(found, by, write) > 0) o.found = found;
  const Tensor hidden = std::exchange(hidden_, Tensor());
  if (!hidden.defined()) return;
  found.narrow(0, 0, 1).add_(hidden);
  found.narrow(0, last, 1).copy_(hidden);
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  need_scale("unscale_");
  PerOptimizer& o = of(optimizer);
  if (o.stage == Stage::unscaled)
    throw_error("GradScaler: unscale_() has already been called on this optimizer since the last update()");
  if (o.stage == Stage::stepped) throw_error("GradScaler: unscale_() is being called after step()");
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
  if (o.stage == Stage::stepped) throw_error("GradScaler: step() has already been called since the last update()");
  const bool unscaled = o.stage == Stage::unscaled;
  if (unscaled) optimizer.check_no_gradient_since_unscale();
  if (!unscaled) check(o, optimizer, false);
  if (!o.found.defined())
    throw_error(
        "GradScaler: step: no inf checks were recorded for this optimizer: no parameter has a gradient; call "
        "scale(loss).backward() first");
  StepResult result(optimizer, o.found);
  if (scales_on_gpu(optimizer)) {
    optimizer.step_scaled({.on_device = unscaled ? nullptr : &on_gpu()->inverse, .found = o.found}, loc);
  } else if (result.applied()) {
    optimizer.step_scaled({unscaled ? 1 : static_cast<double>(now().inverse())}, loc);
  } else {
    optimizer.forget_unscaled();
  }
  o.stage = Stage::stepped;
  return result;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  need_scale("update");
  const auto checked = [](const PerOptimizer& o) { return o.found.defined(); };
  if (!new_scale && std::ranges::none_of(optimizers_, checked))
    throw_error("GradScaler: update: no inf checks were recorded prior to update");
  if (new_scale && !(*new_scale >= options_.min_scale && *new_scale <= options_.max_scale))
    throwf("GradScaler: update: the new scale {} does not lie between min_scale, {}, and max_scale, {}", *new_scale,
           options_.min_scale, options_.max_scale);
  const std::vector<PerOptimizer> ended = std::exchange(optimizers_, {});
  if (there_.in_use()) {
    std::vector<const std::int64_t*> found;
    for (const PerOptimizer& o : ended)
      if (checked(o)) found.push_back(static_cast<const std::int64_t*>(o.found.raw()));
    device::advance_scale(on_gpu(), there_.memory().device(), options_, found, new_scale.value_or(0));
    add_to(there_.memory().unsafe_impl()->storage->version, 1);  // a backward of an older scaled loss is then an Error
    return;
  }
  const bool overflow = std::ranges::any_of(
      ended, [&](const PerOptimizer& o) { return checked(o) && o.found[0].item<std::int64_t>() > 0; });
  const float before = state_.scale;
  state_.advance(options_, overflow, new_scale.value_or(0));
  if (state_.scale != before) remember();
}

// Calls f(name, member) for each entry of the state dict.
template <class F> static void for_state(GradScalerOptions& options, LossScale& state, const F& f) {
  f("scale", state.scale);
  f("growth_factor", options.growth_factor);
  f("backoff_factor", options.backoff_factor);
  f("growth_interval", options.growth_interval);
  f("growth_tracker", state.growth_tracker);
  f("hysteresis", options.hysteresis);
  f("hysteresis_tracker", state.hysteresis_tracker);
  f("updates", state.updates);
}

StateDict GradScaler::state_dict() const {
  StateDict out;
  GradScalerOptions options = options_;
  LossScale state = now();
  if (options.enabled) for_state(options, state, [&](const char* name, auto value) { out.set(name, value); });
  return out;
}

void GradScaler::load_state_dict(const StateDict& state) {
  if (!options_.enabled) return;
  if (state.empty())
    throwf("GradScaler: load_state_dict: the source state is empty; it was saved by a disabled scaler");
  GradScalerOptions options = options_;
  LossScale loaded;
  for_state(options, loaded, [&]<class T>(const char* name, T& value) {
    if constexpr (std::is_floating_point_v<T>) value = static_cast<T>(state.real(name));
    else value = static_cast<T>(state.integer(name));
  });
  options.init_scale = state.real("scale");
  static_cast<void>(GradScaler(options));  // checks the options
  options_ = options;
  optimizers_.clear();
  state_ = loaded;
  there_.host_changed();
  history_.clear();
  remember();
}

void GradScaler::remember() { history_.push_back({state_.updates, static_cast<double>(state_.scale)}); }

}  // namespace gradual::optim
