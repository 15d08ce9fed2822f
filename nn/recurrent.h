// LSTM and GRU. Parameters are named, ordered and initialised as in PyTorch with batch_first: weight_ih_l0
// [gates hidden, in], weight_hh_l0 [gates hidden, hidden], bias_ih_l0 and bias_hh_l0 [gates hidden], then those of l1.
//
//   nn::LSTM lstm(8, 64, {.layers = 2});
//   const Tensor states = lstm(x);  // [N, L, 8] -> [N, L, 64]
#pragma once

#include <vector>

#include "module.h"

namespace gradual::nn {

struct RecurrentOptions {
  std::int64_t layers = 1;
  bool bias = true;
};

// The last hidden states [layers, N, hidden], of an LSTM with its cells; undefined ones stand for zeros.
struct RecurrentState {
  Tensor hidden = {};
  Tensor cell = {};
};

// x [N, L, in] -> the last layer's hidden states [N, L, hidden].
class Recurrent : public Layer {
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
  Tensor run(const Tensor& x, RecurrentState& state) const;

  struct Weights {
    Tensor* of_x;
    Tensor* of_hidden;
    Tensor* bias_x;
    Tensor* bias_hidden;
  };
  std::vector<Weights> layers_;
  std::int64_t in_, hidden_;
};

// Gates input, forget, cell, output (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000):
// c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
class LSTM : public Recurrent {
 public:
  LSTM(std::int64_t in, std::int64_t hidden, RecurrentOptions options = {})
      : Recurrent("LSTM", 4, in, hidden, options) {}

 protected:
  RecurrentState step(const Tensor& of_x, const Tensor& of_hidden, const RecurrentState& state) const override;
};

// Gates reset, update, new (Cho et al. 2014, with the reset after the product, as cuDNN has it):
// n = tanh(n_x + sigmoid(r) n_h), h' = (1 - sigmoid(z)) n + sigmoid(z) h.
class GRU : public Recurrent {
 public:
  GRU(std::int64_t in, std::int64_t hidden, RecurrentOptions options = {}) : Recurrent("GRU", 3, in, hidden, options) {}

 protected:
  RecurrentState step(const Tensor& of_x, const Tensor& of_hidden, const RecurrentState& state) const override;
};

}  // namespace gradual::nn
