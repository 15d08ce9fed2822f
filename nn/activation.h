// Activations and other layers without state: each is the op of the same name.
#pragma once

#include "../core/ops.h"
#include "module.h"

namespace gradual::nn {

template <auto op> class Activation : public Layer {
 public:
  Tensor forward(const Tensor& x) override { return op(x, Loc::current()); }
};

class ReLU : public Activation<relu> {};
class SiLU : public Activation<silu> {};
class Tanh : public Activation<tanh> {};
class Sigmoid : public Activation<sigmoid> {};
class Softplus : public Activation<softplus> {};

class LeakyReLU : public Layer {
 public:
  explicit LeakyReLU(double slope = 0.01) : slope_(slope) {}
  Tensor forward(const Tensor& x) override { return leaky_relu(x, slope_); }

 private:
  double slope_;
};

class GELU : public Layer {
 public:
  explicit GELU(Gelu form = Gelu::exact) : form_(form) {}
  Tensor forward(const Tensor& x) override { return gelu(x, form_); }

 private:
  Gelu form_;
};

class Softmax : public Layer {
 public:
  explicit Softmax(int dim) : dim_(dim) {}
  Tensor forward(const Tensor& x) override { return softmax(x, dim_); }

 private:
  int dim_;
};

class LogSoftmax : public Layer {
 public:
  explicit LogSoftmax(int dim) : dim_(dim) {}
  Tensor forward(const Tensor& x) override { return log_softmax(x, dim_); }

 private:
  int dim_;
};

// Merges the dims from `start` to `end` into one; the batch stays by default.
class Flatten : public Layer {
 public:
  explicit Flatten(int start = 1, int end = -1) : start_(start), end_(end) {}
  Tensor forward(const Tensor& x) override { return flatten(x, start_, end_); }

 private:
  int start_, end_;
};

}  // namespace gradual::nn
