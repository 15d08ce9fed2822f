// An LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000), and a classifier on it.
#pragma once

#include <gradual/gradual.h>

#include <cmath>
#include <vector>

namespace models {

using namespace gradual;

// x [N, L, in] -> the hidden states [N, L, hidden]; the first state is 0. Parameters are named, ordered (input, forget,
// cell, output) and initialised as in PyTorch's LSTM with one layer and batch_first.
struct Lstm : nn::Module {
  Lstm(std::int64_t in, std::int64_t hidden)
      : size(hidden),
        weight_ih(register_parameter("weight_ih_l0", fresh({4 * hidden, in}))),
        weight_hh(register_parameter("weight_hh_l0", fresh({4 * hidden, hidden}))),
        bias_ih(register_parameter("bias_ih_l0", fresh({4 * hidden}))),
        bias_hh(register_parameter("bias_hh_l0", fresh({4 * hidden}))) {}

  Tensor forward(const Tensor& x) override {
    const Tensor inputs = linear(x, weight_ih, bias_ih);  // of all steps at once
    Tensor h = zeros({x.size(0), size}, {.dtype = inputs.dtype(), .device = x.device()}), c = h;
    std::vector<Tensor> states;
    for (std::int64_t t = 0; t < x.size(1); ++t) {
      const std::vector<Tensor> gates = chunk(select(inputs, 1, t) + linear(h, weight_hh, bias_hh), 4, 1);
      c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * tanh(gates[2]);
      h = sigmoid(gates[3]) * tanh(c);
      states.push_back(h);
    }
    return stack(states, 1);
  }

  Tensor fresh(const Shape& sizes) const {
    const double bound = 1 / std::sqrt(static_cast<double>(size));
    return rand(sizes) * (2 * bound) - bound;
  }

  std::int64_t size;
  Tensor& weight_ih;
  Tensor& weight_hh;
  Tensor& bias_ih;
  Tensor& bias_hh;
};

// Reads an image [N, 1, H, W] row by row; the last hidden state gives the logits [N, classes].
struct RowReader : nn::Module {
  RowReader(std::int64_t width, std::int64_t hidden, std::int64_t classes)
      : lstm(register_module("lstm", Lstm(width, hidden))),
        head(register_module("head", nn::Linear(hidden, classes))) {}

  Tensor forward(const Tensor& x) override { return head(select(lstm(squeeze(x, 1)), 1, -1)); }

  Lstm& lstm;
  nn::Linear& head;
};

}  // namespace models
