#include "learned_scales.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../nn/embedding.h"

namespace gradual::amp {
namespace {

constexpr const char* kStep = "_step";
constexpr const char* kInputStep = "_input_step";

void register_step(nn::Module& module, const std::string& path, const std::string& name, Device device) {
  for (const auto& [known, parameter] : module.named_parameters(false)) {
    if (known != name) continue;
    if (parameter.dim() != 0 || parameter.dtype() != DType::f32)
      throwf("learned scales: {} has a parameter '{}' of shape {}; the name is that of a step, f32 []",
             path.empty() ? "the model" : path, name, to_string(parameter.sizes()));
    return;
  }
  module.register_parameter(name, zeros({}, {.device = device}));
}

}  // namespace

void register_steps(const QuantizationState& state, nn::Module& model) {
  for (const auto& [path, module] : model.named_modules()) {
    const Quantization* const q = state.of_module(path);
    if (!q || dynamic_cast<const nn::LookupTable*>(module)) continue;
    for (const auto& [name, parameter] : module->named_parameters(false)) {
      if (parameter.dim() < 2) continue;
      if (learned(q->forward_w)) register_step(*module, path, name + kStep, parameter.device());
      if (learned(q->forward_x)) register_step(*module, path, name + kInputStep, parameter.device());
    }
  }
}

void give_steps(QuantizationState& state, nn::Module& model) {
  for (const auto& [path, module] : model.named_modules()) {
    const nn::NamedTensors own = module->named_parameters(false);
    const std::map<std::string, Tensor> by_name(own.begin(), own.end());
    const auto step = [&](const std::string& name) {
      const auto found = by_name.find(name);
      return found == by_name.end() ? Tensor() : found->second;
    };
    for (const auto& [name, parameter] : own)
      if (parameter.dim() >= 2) state.set_steps(parameter, step(name + kInputStep), step(name + kStep));
  }
}

StateDict without_foreign_steps(const StateDict& state, const nn::Module& model) {
  const nn::NamedTensors known = model.named_parameters();
  const auto is_foreign_step = [&](const StateDict::Entry& entry) {
    const auto* const tensor = std::get_if<Tensor>(&entry.value);
    if (!tensor || tensor->dim() != 0) return false;
    if (std::ranges::any_of(known, [&](const auto& parameter) { return parameter.first == entry.name; })) return false;
    return std::ranges::any_of(std::array{kInputStep, kStep}, [&](const std::string& suffix) {
      return entry.name.ends_with(suffix) && state.contains(entry.name.substr(0, entry.name.size() - suffix.size()));
    });
  };
  StateDict kept;
  for (const StateDict::Entry& entry : state)
    if (!is_foreign_step(entry)) std::visit([&](const auto& value) { kept.set(entry.name, value); }, entry.value);
  return kept;
}

}  // namespace gradual::amp
