// A variational autoencoder (Kingma and Welling 2014).
#pragma once

#include <gradual/gradual.h>

namespace models {

using namespace gradual;

struct Vae : nn::Module {
  Vae(std::int64_t pixels, std::int64_t hidden, std::int64_t latent)
      : fc1(register_module("fc1", nn::Linear(pixels, hidden))),
        mean(register_module("mean", nn::Linear(hidden, latent))),
        log_variance(register_module("log_variance", nn::Linear(hidden, latent))),
        fc2(register_module("fc2", nn::Linear(latent, hidden))),
        fc3(register_module("fc3", nn::Linear(hidden, pixels))) {}

  // Images [N, pixels] from 0 to 1 and normal noise [N, latent] to the negative evidence lower bound, in nats an image.
  Tensor loss(const Tensor& x, const Tensor& noise) {
    const Tensor h = relu(fc1(x));
    const Tensor m = mean(h).to(x.dtype());
    const Tensor v = log_variance(h).to(x.dtype());
    const Tensor logits = fc3(relu(fc2(m + noise * exp(v * 0.5))));
    const Tensor divergence = (exp(v) + square(m) - 1 - v).sum() * 0.5;
    return (bce_with_logits_loss(logits.to(x.dtype()), x, Reduction::sum) + divergence) / x.size(0);
  }

  nn::Linear& fc1;
  nn::Linear& mean;
  nn::Linear& log_variance;
  nn::Linear& fc2;
  nn::Linear& fc3;
};

}  // namespace models
