// Initialisation of parameters, in place and outside the graph. Defaults are PyTorch's.
#pragma once

#include <cstdint>

#include "../core/tensor/tensor.h"

namespace gradual::nn::init {

void constant_(const Tensor& t, double value);
void uniform_(const Tensor& t, double low = 0, double high = 1, Generator& g = default_generator());
void normal_(const Tensor& t, double mean = 0, double std = 1, Generator& g = default_generator());

// Fan in (inputs per output) and fan out (outputs per input) of a weight [out, in, ..]; dims from the third on are the
// kernel. Error below two dims.
struct Fans {
  std::int64_t in, out;
};
Fans fans(const Tensor& weight);

// Glorot and Bengio 2010: variance gain^2 * 2 / (fan in + fan out).
void xavier_uniform_(const Tensor& weight, double gain = 1, Generator& g = default_generator());
void xavier_normal_(const Tensor& weight, double gain = 1, Generator& g = default_generator());

// He et al. 2015: variance 2 / ((1 + slope^2) fan).
enum class Fan { in, out };
struct Kaiming {
  double slope = 0;  // of the leaky_relu that follows; 0 is relu
  Fan fan = Fan::in;
};
void kaiming_uniform_(const Tensor& weight, Kaiming options = {}, Generator& g = default_generator());
void kaiming_normal_(const Tensor& weight, Kaiming options = {}, Generator& g = default_generator());

// The default of Linear and Conv2d: kaiming_uniform_ with slope sqrt(5), which is U(-b, b) with b = 1/sqrt(fan in).
// The bias (which may be undefined) has the same distribution.
void default_weight_and_bias_(const Tensor& weight, const Tensor& bias, Generator& g = default_generator());

}  // namespace gradual::nn::init
