#include "sequential.h"

#include <typeinfo>

#include "../core/dispatch.h"
#include "activation.h"
#include "linear.h"
#include "norm.h"

namespace gradual::nn {
namespace {

// relu(layer(x)) as one op, of the layers that have it; null for others. What derives from them may compute otherwise.
using WithRelu = Tensor (*)(Module& layer, const Tensor& x);
WithRelu with_relu(const Module& layer) {
  const std::type_info& type = typeid(layer);
  if (type == typeid(Linear)) return [](Module& m, const Tensor& x) { return static_cast<Linear&>(m).forward_relu(x); };
  if (type == typeid(BatchNorm1d) || type == typeid(BatchNorm2d))
    return [](Module& m, const Tensor& x) { return static_cast<BatchNorm&>(m).forward_relu(x); };
  return nullptr;
}

// The same where `next` is a ReLU and what passes between the two is seen by nobody.
WithRelu with_next(const Module& layer, const Module& next) {
  const bool apart = typeid(next) != typeid(ReLU) || chain().observe || layer.has_hooks() || next.has_hooks();
  return apart ? nullptr : with_relu(layer);
}

}  // namespace

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (std::size_t i = 0; i < size(); ++i) {
    Module& layer = *children()[i].module;
    const WithRelu both = i + 1 < size() ? with_next(layer, *children()[i + 1].module) : nullptr;
    if (both) {
      const ModuleCall call(layer, SourceLocation::current());
      y = both(layer, y);
      ++i;
    } else {
      y = layer(y);
    }
  }
  return y;
}

}  // namespace gradual::nn
