#include "feedforward.h"

namespace gradual::nn {

SwiGlu::SwiGlu(std::int64_t width, std::int64_t hidden, FeedForwardOptions o)
    : gate(register_module("gate", Linear(width, hidden, {.bias = o.bias}))),
      up(register_module("up", Linear(width, hidden, {.bias = o.bias}))),
      down(register_module("down", Linear(hidden, width, {.bias = o.bias}))) {}

Tensor SwiGlu::forward(const Tensor& x) { return down(silu(gate(x)) * up(x)); }

Mlp::Mlp(std::int64_t width, std::int64_t hidden, FeedForwardOptions o)
    : up(register_module("up", Linear(width, hidden, {.bias = o.bias}))),
      down(register_module("down", Linear(hidden, width, {.bias = o.bias}))) {}

Tensor Mlp::forward(const Tensor& x) { return down(gelu(up(x))); }

}  // namespace gradual::nn
