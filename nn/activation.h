// Activations and softmax. Each is the op of the same name.
#pragma once

#include "op_layer.h"

namespace gradual::nn {

struct ReLU : OpLayer<relu> {
  std::optional<std::pair<OpId, Attrs>> as_op() const override { return only<ReLU>(std::pair(OpId::relu, Attrs())); }
};
struct SiLU : OpLayer<silu> {};
struct Tanh : OpLayer<tanh> {};
struct Sigmoid : OpLayer<sigmoid> {};
struct Softplus : OpLayer<softplus> {};
struct LeakyReLU : OpLayer<leaky_relu, double> {
  explicit LeakyReLU(double slope = 0.01) : OpLayer(slope) {}
};
struct GELU : OpLayer<gelu, Gelu> {
  explicit GELU(Gelu form = Gelu::exact) : OpLayer(form) {}
  std::optional<std::pair<OpId, Attrs>> as_op() const override {
    return only<GELU>(std::pair(OpId::gelu, Attrs(std::get<0>(arguments_))));
  }
};
struct Softmax : OpLayer<softmax, int> {  // Softmax(dim)
  using OpLayer::OpLayer;
};
struct LogSoftmax : OpLayer<log_softmax, int> {
  using OpLayer::OpLayer;
};

}  // namespace gradual::nn
