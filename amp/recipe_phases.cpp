// The phases of a run: which one its next step is in, and the quantities that begin one.
#include "../core/support/throwf.h"
#include "../core/tensor/device_recording.h"
#include "learned_scales.h"
#include "quantized_run.h"
#include "recipe.h"

namespace gradual::amp {

// Makes now_ the recipe of the next step. A product keeps its histories if its quantisation is the same.
void RecipeRun::enter_phase() {
  if (!recipe_.quantization) return;
  Recipe next = recipe_in_step(recipe_, steps_, options_.steps, begun_);
  name_layers(*next.quantization, model_);
  const std::optional<std::size_t> watched = watched_phase();
  const bool measures = watched && info_of(recipe_.schedule[*watched].when->quantity).of_noise;
  if (quantization_ && next.quantization == now_.quantization) {
    quantization_->measures = measures;
    return;
  }
  now_ = std::move(next);
  if (oscillation_) oscillation_->forget();
  const std::shared_ptr<QuantizationState> before = quantization_;
  quantization_ = std::make_shared<QuantizationState>(*now_.quantization);
  if (before) quantization_->take_histories(*before);
  else if (learns_scales(*recipe_.quantization)) give_steps(*quantization_, model_);
  quantization_->watch = now_.scaling.has_value();
  quantization_->measures = measures;
}

std::vector<PhaseStart> RecipeRun::phase_starts() const { return starts_of(recipe_, steps_, options_.steps, begun_); }

std::optional<std::size_t> RecipeRun::watched_phase() const {
  const std::vector<PhaseStart> starts = phase_starts();
  const std::size_t next = starts.empty() ? 0 : starts.back().phase + 1;
  const bool watched = next < recipe_.schedule.size() && recipe_.schedule[next].when;
  return watched ? std::optional(next) : std::nullopt;
}

// Before anything changes the gradients of the step.
std::optional<RecipeRun::Measured> RecipeRun::measure_for_phase() {
  const std::optional<std::size_t> watched = watched_phase();
  if (!watched) return {};
  device::need_no_capture("the update of a recipe with a schedule");
  const MeasuredQuantity quantity = recipe_.schedule[*watched].when->quantity;
  return Measured{*watched, measured(quantity, parameters_, *quantization_, loss_scale())};
}

// After the update of the step in which this was measured.
void RecipeRun::note(const Measured& measured) {
  const PhaseCondition& when = *recipe_.schedule[measured.phase].when;
  const bool passed = watched_phase() != measured.phase;  // a later phase begins with its step
  below_ = !passed && measured.value < when.below ? below_ + 1 : 0;
  if (below_ < when.steps) return;
  begun_.push_back({measured.phase, steps_, measured.value});
  below_ = 0;
}

StateDict RecipeRun::phases_state() const {
  StateDict state;
  state.set("below", below_);
  state.set("begun", begun_.size());
  for (std::size_t i = 0; i < begun_.size(); ++i) {
    state.set(fmt::format("{}.phase", i), begun_[i].phase);
    state.set(fmt::format("{}.step", i), begun_[i].step);
    state.set(fmt::format("{}.value", i), begun_[i].value);
  }
  return state;
}

void RecipeRun::load_phases(const StateDict& state) {
  std::vector<PhaseStart> begun;
  for (std::uint64_t i = 0; i < state.natural("begun"); ++i) {
    const PhaseStart start{state.natural(fmt::format("{}.phase", i)), state.integer(fmt::format("{}.step", i)),
                           state.real(fmt::format("{}.value", i))};
    if (start.phase >= recipe_.schedule.size() || !recipe_.schedule[start.phase].when)
      throwf("RecipeRun: in the state phase {} began by its `when`; the recipe '{}' has none there", start.phase,
             recipe_.name);
    begun.push_back(start);
  }
  below_ = state.integer("below");
  begun_ = std::move(begun);
}

}  // namespace gradual::amp
