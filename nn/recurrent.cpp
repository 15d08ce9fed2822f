#include "recurrent.h"

#include <cmath>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "init.h"

namespace gradual::nn {

Recurrent::Recurrent(const char* layer, std::int64_t gates, std::int64_t in, std::int64_t hidden, RecurrentOptions o)
    : hidden_(hidden) {
  for (const auto& [what, n] : {std::pair("in", in), {"hidden", hidden}, {"layers", o.layers}})
    if (n < 1) throwf("{}: {} is {}; it must be at least 1", layer, what, n);
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));
  for (std::int64_t l = 0; l < o.layers; ++l) {
    const auto add = [&](const std::string& name, const Shape& sizes) {
      Tensor& t = register_parameter(fmt::format("{}_l{}", name, l), sizes.empty() ? Tensor() : empty(sizes));
      if (t.defined()) init::uniform_(t, -bound, bound);
      return &t;
    };
    const Shape bias = o.bias ? Shape{gates * hidden} : Shape();
    layers_.push_back({add("weight_ih", {gates * hidden, l == 0 ? in : hidden}),
                       add("weight_hh", {gates * hidden, hidden}), add("bias_ih", bias), add("bias_hh", bias)});
  }
}

Tensor Recurrent::forward(const Tensor& x) {
  RecurrentState state;
  return run(x, state);
}

Tensor Recurrent::operator()(const Tensor& x, RecurrentState& state, Loc loc) {
  const ModuleCall call(*this, loc);
  return call.leave(x, run(x, state));
}

Tensor Recurrent::run(const Tensor& x, RecurrentState& state) {
  if (x.dim() != 3 || x.size(1) < 1 || x.size(2) != layers_[0].of_x->size(1))
    throwf("{}: input {}; allowed is [N, L, {}]", kind(), to_string(x.sizes()), layers_[0].of_x->size(1));
  const Shape sizes{std::ssize(layers_), x.size(0), hidden_};
  for (const Tensor* t : {&state.hidden, &state.cell})
    if (t->defined() && t->sizes() != sizes)
      throwf("{}: a state {}; allowed is {}", kind(), to_string(t->sizes()), to_string(sizes));
  Tensor y = x;
  std::vector<Tensor> hidden, cell;  // the last ones, by layer
  for (int l = 0; l < std::ssize(layers_); ++l) {
    const Weights& w = layers_[static_cast<std::size_t>(l)];
    const Tensor inputs = linear(y, *w.of_x, *w.bias_x);  // of all steps at once
    const auto first = [&](const Tensor& t) {
      return t.defined() ? select(t, 0, l)
                         : zeros({x.size(0), hidden_}, {.dtype = inputs.dtype(), .device = x.device()});
    };
    RecurrentState at{first(state.hidden), first(state.cell)};
    std::vector<Tensor> states;
    for (std::int64_t t = 0; t < x.size(1); ++t) {
      at = step(select(inputs, 1, t), linear(at.hidden, *w.of_hidden, *w.bias_hidden), at);
      states.push_back(at.hidden);
    }
    y = stack(states, 1);
    hidden.push_back(at.hidden);
    if (at.cell.defined()) cell.push_back(at.cell);
  }
  state = {stack(hidden), cell.empty() ? Tensor() : stack(cell)};
  return y;
}

RecurrentState LSTM::step(const Tensor& of_x, const Tensor& of_hidden, const RecurrentState& state) const {
  const std::vector<Tensor> gates = chunk(of_x + of_hidden, 4, 1);
  const Tensor cell = sigmoid(gates[1]) * state.cell + sigmoid(gates[0]) * tanh(gates[2]);
  return {sigmoid(gates[3]) * tanh(cell), cell};
}

RecurrentState GRU::step(const Tensor& of_x, const Tensor& of_hidden, const RecurrentState& state) const {
  const std::vector<Tensor> x = chunk(of_x, 3, 1), h = chunk(of_hidden, 3, 1);
  const Tensor update = sigmoid(x[1] + h[1]), fresh = tanh(x[2] + sigmoid(x[0] + h[0]) * h[2]);
  return {(1 - update) * fresh + update * state.hidden, {}};
}

}  // namespace gradual::nn
