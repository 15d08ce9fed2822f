#include "sequential.h"

#include <typeinfo>

#include "../core/ops/fused.h"
#include "activation.h"
#include "linear.h"
#include "norm.h"

namespace gradual::nn {
namespace {

// next(layer(x)) as one op, where there is one; null for others. What derives from these layers may compute otherwise.
using Both = Tensor (*)(Module& layer, const Module& next, const Tensor& x);
Both as_one(const Module& layer, const Module& next) {
  const std::type_info &first = typeid(layer), &second = typeid(next);
  if (first == typeid(Linear) && second == typeid(ReLU))
    return [](Module& m, const Module&, const Tensor& x) { return static_cast<Linear&>(m).forward_relu(x); };
  if (first == typeid(Linear) && second == typeid(GELU))
    return [](Module& m, const Module& gelu, const Tensor& x) {
      return static_cast<Linear&>(m).forward_gelu(x, static_cast<const GELU&>(gelu).form());
    };
  if ((first == typeid(BatchNorm1d) || first == typeid(BatchNorm2d)) && second == typeid(ReLU))
    return [](Module& m, const Module&, const Tensor& x) { return static_cast<BatchNorm&>(m).forward_relu(x); };
  return nullptr;
}

// The same, unless a hook is to see what passes between the two or a scope asks for the parts.
Both with_next(const Module& layer, const Module& next) {
  return !fused_rows() || layer.has_hooks() || next.has_hooks() ? nullptr : as_one(layer, next);
}

}  // namespace

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (std::size_t i = 0; i < size(); ++i) {
    Module& layer = *children()[i].module;
    const Both both = i + 1 < size() ? with_next(layer, *children()[i + 1].module) : nullptr;
    if (both) {
      const ModuleCall call(layer, SourceLocation::current());
      y = both(layer, *children()[i + 1].module, y);
      ++i;
    } else {
      y = layer(y);
    }
  }
  return y;
}

}  // namespace gradual::nn
