// The feed-forward layers of transformers: x [.., width] -> [.., width] by a hidden layer.
#pragma once

#include "linear.h"

namespace gradual::nn {

struct FeedForwardOptions {
  bool bias = false;  // of the linear layers
};

// down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202). gate.weight and up.weight [hidden, width], down.weight
// [width, hidden].
class SwiGlu : public Layer {
 public:
  SwiGlu(std::int64_t width, std::int64_t hidden, FeedForwardOptions options = {});
  Tensor forward(const Tensor& x) override;

  Linear& gate;
  Linear& up;
  Linear& down;
};

// down(gelu(up(x))). up.weight [hidden, width], down.weight [width, hidden].
class Mlp : public Layer {
 public:
  Mlp(std::int64_t width, std::int64_t hidden, FeedForwardOptions options = {});
  Tensor forward(const Tensor& x) override;

  Linear& up;
  Linear& down;
};

}  // namespace gradual::nn
