// Recurrent layers, written as PyTorch defines them: gates in the order i f g o (LSTM) and r z n (GRU).
#include <utility>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

// The weights of one direction of a layer.
struct Weights {
  Tensor input, hidden, input_bias, hidden_bias;
};
struct State {
  Tensor h, c;
};

// The gates' parts of the last dim.
std::vector<Tensor> gates_of(const Tensor& x, std::int64_t count) {
  if (x.size(-1) < 1 || x.size(-1) % count != 0) throwf("gates {} in {} parts", to_string(x.sizes()), count);
  return chunk(x, count, -1);
}

// Hochreiter and Schmidhuber 1997.
State lstm_step(const Tensor& projected, const State& s, const Weights& w) {
  const Tensor gates = add(projected, linear(s.h, w.hidden, w.hidden_bias));
  const std::vector<Tensor> g = gates_of(gates, 4);
  const Tensor c = add(mul(sigmoid(g[1]), s.c), mul(sigmoid(g[0]), tanh(g[2])));
  return {mul(sigmoid(g[3]), tanh(c)), c};
}
// Cho et al. 2014, with the reset gate after the product.
State gru_step(const Tensor& projected, const State& s, const Weights& w) {
  const std::vector<Tensor> x = gates_of(projected, 3);
  const std::vector<Tensor> h = gates_of(linear(s.h, w.hidden, w.hidden_bias), 3);
  const Tensor reset = sigmoid(add(x[0], h[0]));
  const Tensor update = sigmoid(add(x[1], h[1]));
  const Tensor fresh = tanh(add(x[2], mul(reset, h[2])));
  return {add(mul(sub(s.h, fresh), update), fresh), {}};
}
State tanh_step(const Tensor& projected, const State& s, const Weights& w) {
  return {tanh(add(projected, linear(s.h, w.hidden, w.hidden_bias))), {}};
}
State relu_step(const Tensor& projected, const State& s, const Weights& w) {
  return {relu(add(projected, linear(s.h, w.hidden, w.hidden_bias))), {}};
}
using StepFn = State (*)(const Tensor& projected, const State& s, const Weights& w);

struct Options {
  bool biases = true;
  std::int64_t layers = 1;
  double dropout = 0;
  bool both_ways = false;
  bool batch_first = false;
};

// x [T, N, in]; the initial states are [layers * directions, N, hidden].
struct Recurrent {
  std::vector<Tensor> weights;
  Options options;
  StepFn step;
  std::vector<Tensor> last_h, last_c;

  Weights of(std::int64_t index) const {
    const std::size_t each = options.biases ? 4 : 2;
    const std::size_t at = static_cast<std::size_t>(index) * each;
    if (weights.size() < at + each) throwf("{} weights for layer {}", weights.size(), index);
    if (!options.biases) return {weights[at], weights[at + 1], {}, {}};
    return {weights[at], weights[at + 1], weights[at + 2], weights[at + 3]};
  }

  Tensor direction(const Tensor& x, std::int64_t index, bool backward, State state) {
    const Weights w = of(index);
    const Tensor projected = linear(x, w.input, w.input_bias);
    const std::int64_t length = x.size(0);
    std::vector<Tensor> outputs(static_cast<std::size_t>(length));
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t t = backward ? length - 1 - i : i;
      state = step(select(projected, 0, t), state, w);
      outputs[static_cast<std::size_t>(t)] = state.h;
    }
    last_h.push_back(state.h);
    if (state.c.defined()) last_c.push_back(state.c);
    return stack(outputs, 0);
  }

  Tensor run(Tensor x, const Tensor& h0, const Tensor& c0) {
    const std::int64_t directions = options.both_ways ? 2 : 1;
    for (std::int64_t layer = 0; layer < options.layers; ++layer) {
      std::vector<Tensor> ways;
      for (std::int64_t d = 0; d < directions; ++d) {
        const std::int64_t index = layer * directions + d;
        const Tensor c = c0.defined() ? select(c0, 0, index) : Tensor();
        ways.push_back(direction(x, index, d == 1, {select(h0, 0, index), c}));
      }
      x = ways.size() == 1 ? ways[0] : cat(ways, -1);
      if (options.dropout > 0 && layer + 1 < options.layers) x = dropout(x, options.dropout);
    }
    return x;
  }
};

// input hx params has_biases num_layers dropout train bidirectional batch_first
Value recurrent(const Arguments& a, StepFn step, const Tensor& h0, const Tensor& c0) {
  Recurrent r{.weights = a.tensors(2), .options = {}, .step = step, .last_h = {}, .last_c = {}};
  r.options.biases = a.flag(3);
  r.options.layers = a.integer(4);
  r.options.dropout = a.flag(6) && a.training() ? a.number(5) : 0;
  r.options.both_ways = a.flag(7);
  r.options.batch_first = a.flag(8);
  const std::size_t each = (r.options.biases ? 4 : 2) * (r.options.both_ways ? 2 : 1);  // an lstm's projection has more
  const bool fits = r.weights.size() % each == 0 && std::cmp_equal(r.weights.size() / each, r.options.layers);
  if (!fits || r.weights.empty()) a.fail(2, "2 weights, and 2 biases if there are some, for each layer and direction");
  const bool single = a.tensor(0).dim() == 2;  // no batch
  Tensor x = a.tensor(0);
  if (single) x = unsqueeze(x, 1);
  else if (r.options.batch_first) x = transpose(x, 0, 1);
  const auto state = [&](const Tensor& s) { return s.defined() && single ? unsqueeze(s, 1) : s; };
  Tensor y = r.run(x, state(h0), state(c0));
  if (single) y = squeeze(y, 1);
  else if (r.options.batch_first) y = transpose(y, 0, 1);
  const auto last = [&](const std::vector<Tensor>& all) { return single ? squeeze(stack(all, 0), 1) : stack(all, 0); };
  if (r.last_c.empty()) return list_of({y, last(r.last_h)});
  return list_of({y, last(r.last_h), last(r.last_c)});
}
Value lstm(const Arguments& a) {
  const std::vector<Tensor> states = a.tensors(1);
  if (states.size() != 2 || !states[0].defined() || !states[1].defined()) a.fail(1, "h and c");
  return recurrent(a, lstm_step, states[0], states[1]);
}
Value gru(const Arguments& a) { return recurrent(a, gru_step, a.tensor(1), {}); }
Value rnn_tanh(const Arguments& a) { return recurrent(a, tanh_step, a.tensor(1), {}); }
Value rnn_relu(const Arguments& a) { return recurrent(a, relu_step, a.tensor(1), {}); }

// input hx w_ih w_hh b_ih b_hh
Weights cell_weights(const Arguments& a) {
  return {a.tensor(2), a.tensor(3), a.optional_tensor(4), a.optional_tensor(5)};
}
Value lstm_cell(const Arguments& a) {
  const std::vector<Tensor> states = a.tensors(1);
  if (states.size() != 2 || !states[0].defined() || !states[1].defined()) a.fail(1, "h and c");
  const Weights w = cell_weights(a);
  const State s = lstm_step(linear(a.tensor(0), w.input, w.input_bias), {states[0], states[1]}, w);
  return list_of({s.h, s.c});
}
template <StepFn step> Value cell(const Arguments& a) {
  const Weights w = cell_weights(a);
  return step(linear(a.tensor(0), w.input, w.input_bias), {a.tensor(1), {}}, w).h;
}

constexpr OpRow kRecurrentRows[] = {
    {"aten.lstm.input", "input hx params has_biases num_layers dropout train bidirectional batch_first", lstm,
     Aliasing::none, nullptr, 6},
    {"aten.gru.input", "input hx params has_biases num_layers dropout train bidirectional batch_first", gru,
     Aliasing::none, nullptr, 6},
    {"aten.rnn_tanh.input", "input hx params has_biases num_layers dropout train bidirectional batch_first", rnn_tanh,
     Aliasing::none, nullptr, 6},
    {"aten.rnn_relu.input", "input hx params has_biases num_layers dropout train bidirectional batch_first", rnn_relu,
     Aliasing::none, nullptr, 6},
    {"aten.lstm_cell.default", "input hx w_ih w_hh b_ih=None b_hh=None", lstm_cell},
    {"aten.gru_cell.default", "input hx w_ih w_hh b_ih=None b_hh=None", cell<gru_step>},
    {"aten.rnn_tanh_cell.default", "input hx w_ih w_hh b_ih=None b_hh=None", cell<tanh_step>},
    {"aten.rnn_relu_cell.default", "input hx w_ih w_hh b_ih=None b_hh=None", cell<relu_step>},
};

}  // namespace

std::span<const OpRow> recurrent_rows() { return kRecurrentRows; }

}  // namespace gradual::pt2
