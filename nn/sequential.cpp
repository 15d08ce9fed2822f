#include "sequential.h"

namespace gradual::nn {
namespace {

// The fusion of `layer` and `next`; null if there is none, a hook must see the tensor between the two, or an
// UnfusedScope is active.
const Fusion* fusion_of(const Module& layer, const Module& next) {
  if (!fused_rows() || layer.has_hooks() || next.has_hooks()) return nullptr;
  const std::optional<OpId> first = layer.ends_in();
  const auto second = first ? next.as_op() : std::nullopt;
  return second ? find_fusion(*first, second->first) : nullptr;
}

}  // namespace

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (std::size_t i = 0; i < size(); ++i) {
    Module& layer = *children()[i].module;
    const Module* const next = i + 1 < size() ? children()[i + 1].module.get() : nullptr;
    if (const Fusion* const fusion = next ? fusion_of(layer, *next) : nullptr) {
      const ModuleCall call(layer, SourceLocation::current());
      y = layer.forward_fused(y, *fusion, next->as_op()->second);
      ++i;
    } else {
      y = layer(y);
    }
  }
  return y;
}

}  // namespace gradual::nn
