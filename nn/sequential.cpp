#include "sequential.h"

namespace gradual::nn {

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (std::size_t i = 0; i < size(); ++i) {
    Module& layer = *children()[i].module;
    const Module* const next = i + 1 < size() ? children()[i + 1].module.get() : nullptr;
    const auto second = next && !next->has_hooks() ? next->as_op() : std::nullopt;
    if (const Fusion* const fusion = second ? layer.fusion_with(second->first) : nullptr) {
      const ModuleCall call(layer, SourceLocation::current());
      y = layer.forward_fused(y, *fusion, second->second, {});
      ++i;
    } else {
      y = layer(y);
    }
  }
  return y;
}

}  // namespace gradual::nn
