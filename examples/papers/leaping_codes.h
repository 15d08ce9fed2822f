// Shared by the reproductions of papers on oscillating weights: how often the codes of a weight change.
#pragma once

#include "paper.h"

namespace paper {

// A weight in the last steps, as the bins of a quantizer show it.
struct FollowedWeight {
  Tensor weight;
  double ratio = 1;
  Tensor last = {};
  Tensor rounded = {};
  Tensor codes = {};
  Tensor excess = zeros(weight.sizes());  // of the rounded way over `ratio` times the own
  Tensor changes = excess.clone();

  void follow(const Quantizer& bins) {
    const NoGrad off;
    const Tensor now = weight.detach().clone();
    const Tensor to = fake_quantize(now, bins);
    const Tensor code = quantize(now, bins).decode();
    if (last.defined()) {
      excess.add_(abs(to - rounded) - abs(now - last) * ratio);
      changes.add_(ne(code, codes).to(DType::f32));
    }
    last = now;
    rounded = to;
    codes = code;
  }
};

}  // namespace paper
