#include "bad_tensor.h"

#include <algorithm>

#include "numbers.h"

namespace gradual::inspect {
namespace {

std::optional<std::string> first_name(const nn::NamedTensors& tensors) {
  const auto bad = std::ranges::find_if(tensors, [](const auto& named) { return !numbers_of(named.second).finite(); });
  return bad == tensors.end() ? std::nullopt : std::optional(bad->first);
}

}  // namespace

std::optional<BadTensor> first_nonfinite(const nn::Module& model) {
  if (const auto parameter = first_name(model.named_parameters()))
    return BadTensor{*parameter, ModelTensorKind::parameter};
  const auto buffer = first_name(model.named_buffers());
  if (!buffer) return {};
  const nn::NamedTensors statistics = model.named_running_statistics();
  const bool statistic = std::ranges::count(statistics, *buffer, &nn::NamedTensors::value_type::first) > 0;
  return BadTensor{*buffer, statistic ? ModelTensorKind::running_statistic : ModelTensorKind::other_buffer};
}

}  // namespace gradual::inspect
