// A layer without weights that calls one op.
#pragma once

#include <tuple>

#include "../core/ops/ops.h"
#include "module.h"

namespace gradual::nn {

// op(x, arguments..)
template <auto op, class... Arguments> struct OpLayer : Layer {
  explicit OpLayer(Arguments... arguments) : arguments_(arguments...) {}
  Tensor forward(const Tensor& x) override {
    return std::apply([&](const auto&... a) { return op(x, a..., Loc::current()); }, arguments_);
  }

 protected:
  std::tuple<Arguments...> arguments_;
};

}  // namespace gradual::nn
