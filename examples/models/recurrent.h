// Recurrent layers. Parameters are named, ordered and initialised as in PyTorch with batch_first: weight_ih_l0
// [gates hidden, in], weight_hh_l0 [gates hidden, hidden], bias_ih_l0 and bias_hh_l0 [gates hidden], then those of l1.
//
//   models::LSTM lstm(8, 64, {.layers = 2});
//   const Tensor states = lstm(x);    // [N, L, 8] -> [N, L, 64]
#pragma once

#include <gradual/gradual.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace models {

using namespace gradual;

struct RecurrentOptions {
  std::int64_t layers = 1;
  bool bias = true;
};

// The last hidden states [layers, N, hidden], of an LSTM with its cells; undefined ones stand for zeros.
struct RecurrentState {
  Tensor hidden, cell;
};

// x [N, L, in] -> the last layer's hidden states [N, L, hidden].
class Recurrent : public nn::Module {
 public:
  Tensor forward(const Tensor& x) override;
  using Module::operator();
  // Starts from `state` and replaces it by the last one.
  Tensor operator()(const Tensor& x, RecurrentState& state, Loc loc = Loc::current());

 protected:
  Recurrent(const char* layer, std::int64_t gates, std::int64_t in, std::int64_t hidden, RecurrentOptions options);
  // One step: what x and the hidden state give to the gates [N, gates hidden] and the state [N, hidden] -> the new one.
  virtual RecurrentState step(const Tensor& of_x, const Tensor& of_hidden, const RecurrentState& state) const = 0;

 private:
  Tensor run(const Tensor& x, RecurrentState& state);

  struct Weights {
    Tensor *of_x, *of_hidden, *bias_x, *bias_hidden;
  };
  std::vector<Weights> layers_;
  std::int64_t hidden_;
};

// Gates input, forget, cell, output (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000):
// c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
struct LSTM : Recurrent {
  LSTM(std::int64_t in, std::int64_t hidden, RecurrentOptions options = {})
      : Recurrent("LSTM", 4, in, hidden, options) {}

 protected:
  RecurrentState step(const Tensor& of_x, const Tensor& of_hidden, const RecurrentState& state) const override;
};

// Gates reset, update, new (Cho et al. 2014, with the reset after the product, as cuDNN has it):
// n = tanh(n_x + sigmoid(r) n_h), h' = (1 - sigmoid(z)) n + sigmoid(z) h.
struct GRU : Recurrent {
  GRU(std::int64_t in, std::int64_t hidden, RecurrentOptions options = {}) : Recurrent("GRU", 3, in, hidden, options) {}

 protected:
  RecurrentState step(const Tensor& of_x, const Tensor& of_hidden, const RecurrentState& state) const override;
};

inline Recurrent::Recurrent(const char* layer, std::int64_t gates, std::int64_t in, std::int64_t hidden,
                            RecurrentOptions o)
    : hidden_(hidden) {
  for (const auto& [what, n] : {std::pair("in", in), {"hidden", hidden}, {"layers", o.layers}})
    if (n < 1) throw std::invalid_argument(std::string(layer) + ": " + what + " must be at least 1");
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));
  for (std::int64_t l = 0; l < o.layers; ++l) {
    const auto add = [&](const std::string& name, const Shape& sizes) {
      Tensor& t = register_parameter(name + "_l" + std::to_string(l), sizes.empty() ? Tensor() : empty(sizes));
      if (t.defined()) nn::init::uniform_(t, -bound, bound);
      return &t;
    };
    const Shape bias = o.bias ? Shape{gates * hidden} : Shape();
    layers_.push_back({add("weight_ih", {gates * hidden, l == 0 ? in : hidden}),
                       add("weight_hh", {gates * hidden, hidden}), add("bias_ih", bias), add("bias_hh", bias)});
  }
}

inline Tensor Recurrent::forward(const Tensor& x) {
  RecurrentState state;
  return run(x, state);
}

inline Tensor Recurrent::operator()(const Tensor& x, RecurrentState& state, Loc loc) {
  const nn::ModuleCall call(*this, loc);
  return call.leave(x, run(x, state));
}

inline Tensor Recurrent::run(const Tensor& x, RecurrentState& state) {
  if (x.dim() != 3 || x.size(1) < 1 || x.size(2) != layers_[0].of_x->size(1))
    throw std::invalid_argument(kind() + ": input " + to_string(x.sizes()) + "; allowed is [N, L, " +
                                std::to_string(layers_[0].of_x->size(1)) + "]");
  const Shape sizes{std::ssize(layers_), x.size(0), hidden_};
  for (const Tensor* t : {&state.hidden, &state.cell})
    if (t->defined() && t->sizes() != sizes)
      throw std::invalid_argument(kind() + ": a state " + to_string(t->sizes()) + "; allowed is " + to_string(sizes));
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

inline RecurrentState LSTM::step(const Tensor& of_x, const Tensor& of_hidden, const RecurrentState& state) const {
  const std::vector<Tensor> gates = chunk(of_x + of_hidden, 4, 1);
  const Tensor cell = sigmoid(gates[1]) * state.cell + sigmoid(gates[0]) * tanh(gates[2]);
  return {sigmoid(gates[3]) * tanh(cell), cell};
}

inline RecurrentState GRU::step(const Tensor& of_x, const Tensor& of_hidden, const RecurrentState& state) const {
  const std::vector<Tensor> x = chunk(of_x, 3, 1), h = chunk(of_hidden, 3, 1);
  const Tensor update = sigmoid(x[1] + h[1]), fresh = tanh(x[2] + sigmoid(x[0] + h[0]) * h[2]);
  return {(1 - update) * fresh + update * state.hidden, {}};
}

}  // namespace models
