#include "unit_scaling.h"

#include <cmath>
#include <memory>

#include "../autograd/function.h"
#include "../core/support/throwf.h"

namespace gradual::nn {
namespace {

struct ScaleApart : Function {
  ScaleApart(double forward, double backward) : forward_(forward), backward_(backward) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override { return {inputs[0] * forward_}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override { return {grads[0] * backward_}; }
  std::string name() const override { return "scale_apart"; }

 private:
  double forward_, backward_;
};

}  // namespace

Tensor scale_apart(const Tensor& x, double forward, double backward) {
  if (forward == 1 && backward == 1) return x;
  return apply(std::make_shared<ScaleApart>(forward, backward), {x})[0];
}

UnitLinear::UnitLinear(std::int64_t in, std::int64_t out, UnitLinearOptions options)
    : weight(register_parameter("weight", empty({count("UnitLinear", "out", out), count("UnitLinear", "in", in)}))),
      bias(register_parameter("bias", options.bias ? zeros({out}) : Tensor())) {
  init::normal_(weight);
  const auto inputs = static_cast<double>(in);
  forward_ = options.readout ? 1 / inputs : 1 / std::sqrt(inputs);
  backward_ = options.constrained ? forward_ : 1 / std::sqrt(static_cast<double>(out));
}

Tensor UnitLinear::forward(const Tensor& x) {
  const Tensor y = scale_apart(linear(scale_apart(x, 1, backward_), weight), forward_, 1);
  return bias.defined() ? y + bias : y;
}

Tensor UnitReLU::forward(const Tensor& x) { return relu(x) * std::sqrt(2.0); }

Tensor unit_cross_entropy(const Tensor& logits, const Tensor& classes) {
  if (logits.dim() != 2 || logits.size(1) < 2)
    throwf("unit_cross_entropy: the logits are {}; allowed are [N, C] with C at least 2", to_string(logits.sizes()));
  const auto n = static_cast<double>(logits.size(0));
  const auto c = static_cast<double>(logits.size(1));
  return cross_entropy(scale_apart(logits, 1, n * c / std::sqrt(c - 1)), classes);
}

}  // namespace gradual::nn
