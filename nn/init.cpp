#include "init.h"

#include <cmath>

#include "../autograd/grad_mode.h"

namespace gradual::nn::init {

static double kaiming_std(const Tensor& w, const Kaiming& o) {
  const auto [in, out] = fans(w);
  return std::sqrt(2 / (1 + o.slope * o.slope)) / std::sqrt(static_cast<double>(o.fan == Fan::in ? in : out));
}

static double xavier_std(const Tensor& w, double gain) {
  const auto [in, out] = fans(w);
  return gain * std::sqrt(2.0 / static_cast<double>(in + out));
}

// A uniform distribution on [-b, b] has the standard deviation b / sqrt(3).
static void uniform_with_std_(const Tensor& t, double std, Generator& g) {
  const double bound = std::sqrt(3.0) * std;
  uniform_(t, -bound, bound, g);
}

void constant_(const Tensor& t, double value) {
  const NoGrad no_grad;
  t.fill_(value);
}

void uniform_(const Tensor& t, double low, double high, Generator& g) {
  if (t.numel()) t.uniform_(low, high, g);
}

void normal_(const Tensor& t, double mean, double std, Generator& g) {
  if (t.numel()) t.normal_(mean, std, g);
}

Fans fans(const Tensor& weight) {
  if (weight.dim() < 2)
    throw_error("init: fan in and fan out need a weight of at least two dims [out, in, ..], given " +
                to_string(weight.sizes()) + "; use uniform_, normal_ or constant_ for a bias");
  std::int64_t kernel = 1;
  for (int i = 2; i < weight.dim(); ++i) kernel *= weight.size(i);
  return {weight.size(1) * kernel, weight.size(0) * kernel};
}

void xavier_uniform_(const Tensor& w, double gain, Generator& g) { uniform_with_std_(w, xavier_std(w, gain), g); }
void xavier_normal_(const Tensor& w, double gain, Generator& g) { normal_(w, 0, xavier_std(w, gain), g); }
void kaiming_uniform_(const Tensor& w, Kaiming o, Generator& g) { uniform_with_std_(w, kaiming_std(w, o), g); }
void kaiming_normal_(const Tensor& w, Kaiming o, Generator& g) { normal_(w, 0, kaiming_std(w, o), g); }

void default_weight_and_bias_(const Tensor& weight, const Tensor& bias, Generator& g) {
  const std::int64_t fan_in = fans(weight).in;
  const double bound = fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
  uniform_(weight, -bound, bound, g);
  if (bias.defined()) uniform_(bias, -bound, bound, g);
}

}  // namespace gradual::nn::init
