// Unit scaling (Blake et al. 2023, arXiv 2303.11257; u-muP, arXiv 2407.17465; arXiv 2502.05967): weights, activations
// and the gradients of activations have a root mean square of about 1 when training begins. Each op has a fixed factor
// forward and another one backward. So FP8 needs no scales from amaxes: recipe `unscaled-fp8`.
//
//   nn::Sequential model{nn::Flatten(), nn::UnitLinear(64, 256), nn::UnitReLU(), nn::UnitLinear(256, 10)};
//   loss = nn::unit_cross_entropy(model(x), y);
//
// The gradients of x and of the weight may have another factor than y. They are then the loss's times a constant, which
// Adam divides out. Where branches add, their factors must be the same (UnitLinearOptions::constrained). These papers
// were not read: the factors follow from the variance of a sum of independent numbers.
#pragma once

#include "../core/ops/ops.h"
#include "init.h"
#include "module.h"

namespace gradual::nn {

// x * forward, whose gradient is dy * backward. Of any shape and floating dtype.
Tensor scale_apart(const Tensor& x, double forward, double backward);

struct UnitLinearOptions {
  bool bias = false;         // starts from 0
  bool readout = false;      // forward is divided by `in`, as u-muP's last layer, instead of its root
  bool constrained = false;  // the gradient of x has forward's factor: for branches that are added to others
};

// x [.., in] -> [.., out]; weight [out, in] from N(0, 1), so that Adam's rate is sqrt(in) times that of Linear. The
// products' operands x, weight and dy are of size 1; their results are multiplied: y by 1 / sqrt(in), dx by 1 /
// sqrt(out). The weight's gradient is left as it is.
struct UnitLinear : Layer {
  UnitLinear(std::int64_t in, std::int64_t out, UnitLinearOptions options = {});
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;  // undefined if there is none

 private:
  double forward_ = 1;
  double backward_ = 1;
};

// relu(x) sqrt(2), forward and backward: half of normal numbers are 0.
struct UnitReLU : Layer {
  Tensor forward(const Tensor& x) override;
};

// cross_entropy of logits [N, C] and classes i64 [N], the mean, whose gradient is N C / sqrt(C - 1) times as large: of
// size 1 for equal probabilities. Error for fewer than two classes.
Tensor unit_cross_entropy(const Tensor& logits, const Tensor& classes);

}  // namespace gradual::nn
