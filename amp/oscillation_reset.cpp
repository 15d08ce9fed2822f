#include "oscillation_reset.h"

#include <algorithm>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "bookkeeping.h"

namespace gradual::amp {
namespace {

// The layers whose weights are watched: their kind, the dims of their weight, and the dim that forward contracts.
struct LayerKind {
  const char* kind;
  int dims;
  int axis;
};
constexpr LayerKind kLayerKinds[] = {{"Linear", 2, 1}, {"Conv2d", 4, 1}};

// The quantizer of the weight in forward; none: it is not rounded, not the same in each step, or not along its axis.
std::optional<Quantizer> rounding_of(const QuantizationState& state, const std::string& path, const Tensor& weight,
                                     int axis) {
  const Quantization* const q = state.of_module(path);
  if (!q || !q->forward_w || weight.dtype() == DType::f64) return {};
  Quantizer w = *q->forward_w;
  if (is_random(w) || w.hadamard || has_kept_scale(w.scaling)) return {};
  w.overflow = q->overflow.value_or(w.overflow);
  const int together = elements_together(w.scaling);
  const bool across = weight.dim() > 2 && (has_tiles(w.scaling) || unit_of(w.scaling) == ScaleUnit::row ||
                                           (together > 0 && weight.size(axis) % together != 0));
  return across ? std::nullopt : std::optional(w);
}

// A weight rounded as forward does it. Outlier channels have another quantizer, and are not watched: they stay as they
// are.
Tensor rounded_weight(const QuantizationState& state, const Tensor& weight, const Tensor& value, const Quantizer& q,
                      int axis) {
  const auto site = std::ranges::find(state.sites(), storage_id(weight), [](const auto& s) { return s->weight; });
  const Tensor chosen = site == state.sites().end() ? Tensor() : (*site)->outliers();
  if (!chosen.defined()) return fake_quantize(value, q, {.axis = axis});
  const Tensor mask = chosen.to(value.device());
  if (mask.numel() != value.size(axis)) return value;  // a convolution in groups
  const Tensor outliers = along_dim(mask, value.dim(), axis);
  return where(outliers, value, fake_quantize(where(outliers, 0, value), q, {.axis = axis}));
}

}  // namespace

void check_valid(const OscillationReset& o) {
  if (o.from < 0) throwf("oscillation_reset: from is {}; allowed is at least 0", o.from);
  if (o.window < 1) throwf("oscillation_reset: window is {}; allowed is at least 1", o.window);
  if (o.period <= o.window)
    throwf("oscillation_reset: period is {} and window {}; the period is longer than the window", o.period, o.window);
  if (!(o.ratio > 1 && o.ratio < 1e6))
    throwf("oscillation_reset: ratio is {}; allowed is above 1 and below 1e6", o.ratio);
}

OscillationWatch::OscillationWatch(const OscillationReset& options, nn::Module& model) : options_(options) {
  check_valid(options_);
  for (const auto& [path, module] : model.named_modules())
    for (const LayerKind& known : kLayerKinds)
      if (module->kind() == known.kind)
        for (const auto& [name, parameter] : module->named_parameters(false))
          if (parameter.dim() == known.dims) layers_.push_back({path, parameter, known.axis});
  if (layers_.empty())
    throwf("oscillation_reset: it resets weights of Linear and Conv2d layers; the model {} has none", model.kind());
}

void OscillationWatch::begin(const Layer& layer, const QuantizationState& state, optim::Optimizer& optimizer) {
  const std::optional<Quantizer> q = rounding_of(state, layer.path, layer.weight, layer.axis);
  if (!q) return;
  const CategoryScope category(Category::optimizer);
  const Tensor value = optimizer.master(layer.weight).detach().to(DType::f32).clone();
  const Tensor none = zeros(value.sizes(), {.device = value.device()});
  watched_[layer.path] = {value, rounded_weight(state, layer.weight, value, *q, layer.axis), none, none.clone()};
}

void OscillationWatch::follow(const Layer& layer, const QuantizationState& state, optim::Optimizer& optimizer) {
  const auto found = watched_.find(layer.path);
  if (found == watched_.end()) return;
  const std::optional<Quantizer> q = rounding_of(state, layer.path, layer.weight, layer.axis);
  if (!q) {
    watched_.erase(found);
    return;
  }
  const CategoryScope category(Category::optimizer);
  Watched& w = found->second;
  const Tensor value = optimizer.master(layer.weight).detach().to(DType::f32).clone();
  const Tensor rounded = rounded_weight(state, layer.weight, value, *q, layer.axis);
  w.distance.add_(abs(value - w.value));
  w.rounded_distance.add_(abs(rounded - w.rounded));
  w.value = value;
  w.rounded = rounded;
}

void OscillationWatch::reset(const Layer& layer, optim::Optimizer& optimizer) {
  const auto found = watched_.find(layer.path);
  if (found == watched_.end()) return;
  Tensor centred;
  {
    const Bookkeeping unseen;
    const Watched& w = found->second;
    const Tensor moved = gt(w.distance, 0.0);
    const Tensor oscillates = logical_and(moved, ge(w.rounded_distance, w.distance * options_.ratio));
    const auto count = static_cast<std::int64_t>(sum(cast(oscillates, DType::i64)).item());
    if (count > 0) centred = where(oscillates, w.rounded, w.value);
    resets_ += count;
  }
  watched_.erase(found);
  if (!centred.defined()) return;
  const NoGrad off;
  const Tensor wide = optimizer.master(layer.weight);
  wide.copy_(centred);
  if (wide.is_same(layer.weight)) return;
  Tensor(layer.weight).copy_(wide);
  optimizer.keep_master(layer.weight);
}

void OscillationWatch::after_update(std::int64_t updates, const QuantizationState& state, optim::Optimizer& optimizer) {
  const std::int64_t in_period = updates % options_.period;
  if (in_period > options_.window) return;
  {
    const Bookkeeping unseen;
    for (const Layer& layer : layers_)
      if (in_period > 0) follow(layer, state, optimizer);
      else if (updates >= options_.from) begin(layer, state, optimizer);
  }
  if (in_period != options_.window || watched_.empty()) return;
  for (const Layer& layer : layers_) reset(layer, optimizer);
  ++windows_;
}

StateDict OscillationWatch::state_dict() const {
  StateDict state;
  state.set("resets", resets_);
  state.set("windows", windows_);
  for (const auto& [path, watched] : watched_)
    for (const auto& [name, part] : kParts) state.set(fmt::format("watched.{}.{}", path, name), watched.*part);
  return state;
}

void OscillationWatch::load_state_dict(const StateDict& state) {
  std::map<std::string, Watched> loaded;
  for (const Layer& layer : layers_) {
    const std::string prefix = fmt::format("watched.{}.", layer.path);
    if (!state.contains(prefix + kParts[0].first)) continue;
    Watched& w = loaded[layer.path];
    for (const auto& [name, part] : kParts) {
      const Tensor value = state.tensor(prefix + name);
      if (value.sizes() != layer.weight.sizes() || value.dtype() != DType::f32)
        throwf("oscillation_reset: {}{} is {}; its weight is {}", prefix, name, describe(value),
               to_string(layer.weight.sizes()));
      w.*part = value.to(layer.weight.device()).clone();
    }
  }
  resets_ = state.integer("resets");
  windows_ = state.integer("windows");
  watched_ = std::move(loaded);
}

void OscillationWatch::forget() { watched_.clear(); }

}  // namespace gradual::amp
