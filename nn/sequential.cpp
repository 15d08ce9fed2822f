#include "sequential.h"

namespace gradual::nn {

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (std::size_t i = 0; i < size(); ++i) {
    Module& layer = *children()[i].module;
    const Module* const next = i + 1 < size() ? children()[i + 1].module.get() : nullptr;
    const auto second = next && !next->has_hooks() ? next->as_op() : std::nullopt;
    const Tensor fused = second ? layer.call_fused(y, second->first, second->second) : Tensor();
    if (fused.defined()) ++i;
    y = fused.defined() ? fused : layer(y);
  }
  return y;
}

}  // namespace gradual::nn
