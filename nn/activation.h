// Layers without weights: activations, pools, dropout. Each is the op of the same name.
#pragma once

#include <tuple>

#include "../core/ops/ops.h"
#include "module.h"

namespace gradual::nn {

// op(x, arguments..)
template <auto op, class... Arguments> struct OpLayer : Layer {
  explicit OpLayer(Arguments... arguments) : arguments_(arguments...) {}
  Tensor forward(const Tensor& x) override {
    return std::apply([&](const auto&... a) { return op(x, a..., Loc::current()); }, arguments_);
  }

 protected:
  std::tuple<Arguments...> arguments_;
};

struct ReLU : OpLayer<relu> {};
struct SiLU : OpLayer<silu> {};
struct Tanh : OpLayer<tanh> {};
struct Sigmoid : OpLayer<sigmoid> {};
struct Softplus : OpLayer<softplus> {};
struct LeakyReLU : OpLayer<leaky_relu, double> {
  explicit LeakyReLU(double slope = 0.01) : OpLayer(slope) {}
};
struct GELU : OpLayer<gelu, Gelu> {
  explicit GELU(Gelu form = Gelu::exact) : OpLayer(form) {}
  Gelu form() const { return std::get<0>(arguments_); }
};
struct Softmax : OpLayer<softmax, int> {  // Softmax(dim)
  using OpLayer::OpLayer;
};
struct LogSoftmax : OpLayer<log_softmax, int> {
  using OpLayer::OpLayer;
};
// Merges the dims from `start` to `end` into one; the batch stays by default.
struct Flatten : OpLayer<flatten, int, int> {
  explicit Flatten(int start = 1, int end = -1) : OpLayer(start, end) {}
};

// Pooling over [N, C, H, W]. Pool2dOptions: kernel, stride (0: the kernel's size), padding.
template <Tensor (*op)(const Tensor&, Pool2dOptions, Loc)> struct Pool2d : OpLayer<op, Pool2dOptions> {
  explicit Pool2d(Pool2dOptions options) : OpLayer<op, Pool2dOptions>(options) {}
  explicit Pool2d(std::int64_t kernel) : Pool2d(Pool2dOptions{.kernel = kernel}) {}
};
struct MaxPool2d : Pool2d<max_pool2d> {
  using Pool2d::Pool2d;
};
struct AvgPool2d : Pool2d<avg_pool2d> {  // padding counts as zeros
  using Pool2d::Pool2d;
};
struct AdaptiveAvgPool2d : OpLayer<adaptive_avg_pool2d, std::int64_t, std::int64_t> {  // to [N, C, height, width]
  using OpLayer::OpLayer;
  explicit AdaptiveAvgPool2d(std::int64_t size) : OpLayer(size, size) {}
};

// In training each element is zero with probability p and divided by 1 - p otherwise (Srivastava et al. 2014); in
// eval the input itself. Draws from the thread's default generator.
class Dropout : public Layer {
 public:
  explicit Dropout(double p = 0.5) : p_(p) {
    if (!(p >= 0 && p <= 1)) fail("Dropout: p is " + std::to_string(p) + "; allowed are 0 to 1");
  }
  Tensor forward(const Tensor& x) override { return drops() ? dropout(x, p_) : x; }
  bool drops() const { return training() && p_ > 0; }
  Tensor forward_add(const Operand& x, const Tensor& residual) { return dropout_add(x, residual, p_); }

 private:
  double p_;
};

}  // namespace gradual::nn
