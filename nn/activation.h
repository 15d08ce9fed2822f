// Activations, pools and other layers without state: each is the op of the same name.
#pragma once

#include <tuple>

#include "../core/ops.h"
#include "module.h"

namespace gradual::nn {

// op(x, arguments..)
template <auto op, class... Arguments> struct OpLayer : Layer {
  explicit OpLayer(Arguments... arguments) : arguments_(arguments...) {}
  Tensor forward(const Tensor& x) override {
    return std::apply([&](const auto&... a) { return op(x, a..., Loc::current()); }, arguments_);
  }

 private:
  std::tuple<Arguments...> arguments_;
};

struct ReLU : OpLayer<relu> {};
struct SiLU : OpLayer<silu> {};
struct Tanh : OpLayer<tanh> {};
struct Sigmoid : OpLayer<sigmoid> {};
struct Softplus : OpLayer<softplus> {};
struct LeakyReLU : OpLayer<leaky_relu, double> {
  explicit LeakyReLU(double slope = 0.01) : OpLayer(slope) {}
};
struct GELU : OpLayer<gelu, Gelu> {
  explicit GELU(Gelu form = Gelu::exact) : OpLayer(form) {}
};
struct Softmax : OpLayer<softmax, int> {  // Softmax(dim)
  using OpLayer::OpLayer;
};
struct LogSoftmax : OpLayer<log_softmax, int> {
  using OpLayer::OpLayer;
};
// Merges the dims from `start` to `end` into one; the batch stays by default.
struct Flatten : OpLayer<flatten, int, int> {
  explicit Flatten(int start = 1, int end = -1) : OpLayer(start, end) {}
};

}  // namespace gradual::nn
