// Group normalisation (Wu and He 2018): a norm layer of one's own. Half models keep it in f32, as every nn::Norm.
#pragma once

#include <gradual/gradual.h>

#include <stdexcept>

namespace models {

using namespace gradual;

// Normalises x [N, C, ..] over each of `groups` groups of channels and all positions, in f32 (f64 for f64), and rounds
// once. Parameters "weight" [C] (1) and "bias" [C] (0). Error if the groups do not divide the channels.
struct GroupNorm : nn::Norm {
  GroupNorm(std::int64_t groups, std::int64_t channels)
      : groups(count("GroupNorm", "groups", groups)),
        weight(register_parameter("weight", ones({count("GroupNorm", "channels", channels)}))),
        bias(register_parameter("bias", zeros({channels}))) {
    if (channels % groups != 0) throw std::invalid_argument("GroupNorm: the groups do not divide the channels");
  }

  Tensor forward(const Tensor& x) override {
    const Tensor wide = x.dtype() == DType::f64 ? x : x.to(DType::f32);
    const Tensor y = layer_norm(wide.reshape({x.size(0), groups, -1}), 1).reshape(x.sizes());
    Shape channels = Shape::filled(x.dim(), 1);
    channels[1] = x.size(1);
    return (y * weight.reshape(channels) + bias.reshape(channels)).to(x.dtype());
  }

  std::int64_t groups;
  Tensor& weight;
  Tensor& bias;
};

}  // namespace models
