#include "recurrent.h"

#include <cmath>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "init.h"

namespace gradual::nn {

Recurrent::Recurrent(const char* layer, std::int64_t gates, std::int64_t in, std::int64_t hidden, RecurrentOptions o)
    : in_(count(layer, "in", in)), hidden_(count(layer, "hidden", hidden)) {
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));
  const std::int64_t rows = gates * hidden;
  const std::int64_t layers = count(layer, "layers", o.layers);
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto add = [&](const char* name, const Shape& sizes, bool exists = true) {
      Tensor& t = register_parameter(fmt::format("{}_l{}", name, l), exists ? empty(sizes) : Tensor());
      if (exists) init::uniform_(t, -bound, bound);
      return &t;
    };
    layers_.push_back({add("weight_ih", {rows, l == 0 ? in : hidden}), add("weight_hh", {rows, hidden}),
                       add("bias_ih", {rows}, o.bias), add("bias_hh", {rows}, o.bias)});
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

Tensor Recurrent::run(const Tensor& x, RecurrentState& state) const {
  if (x.dim() != 3 || x.size(1) < 1 || x.size(2) != in_)
    throwf("{}: input {}; allowed is [N, L, {}]", kind(), to_string(x.sizes()), in_);
  const Shape sizes{std::ssize(layers_), x.size(0), hidden_};
  for (const Tensor* t : {&state.hidden, &state.cell})
    if (t->defined() && t->sizes() != sizes)
      throwf("{}: a state {}; allowed is {}", kind(), to_string(t->sizes()), to_string(sizes));
  Tensor y = x;
  std::vector<Tensor> hidden, cell;  // the last ones, by layer
  for (const Weights& w : layers_) {
    const Tensor inputs = linear(y, *w.of_x, *w.bias_x);  // of all steps at once
    const auto first = [&](const Tensor& t) {
      return t.defined() ? select(t, 0, std::ssize(hidden)) : zeros({x.size(0), hidden_}, options_of(inputs));
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
  const std::vector<Tensor> x = chunk(of_x, 3, 1);
  const std::vector<Tensor> h = chunk(of_hidden, 3, 1);
  const Tensor update = sigmoid(x[1] + h[1]);
  const Tensor fresh = tanh(x[2] + sigmoid(x[0] + h[0]) * h[2]);
  return {(1 - update) * fresh + update * state.hidden};
}

}  // namespace gradual::nn
