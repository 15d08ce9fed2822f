// Norms, softmax and Adam in half precision: ops that need more room inside than their results need.
#include <gradual/gradual.h>

#include <cmath>
#include <cstdio>

using namespace gradual;

namespace {

// 128 numbers, half of them one below `center`, half one above: their variance is 1.
Tensor around(double center, DType dtype) {
  return tensor({center - 1, center + 1}, options_of(dtype)).expand({64, 2}).contiguous();
}
Tensor variance_by_ops(const Tensor& x) { return mean(square(x)) - square(mean(x)); }
Tensor softmax_by_ops(const Tensor& x) { return exp(x) / sum(exp(x)); }

// The weight after one step of Adam from 1, with the rate 0.01: 0.99 is right for any gradient.
double adam_step(DType dtype, bool all_in_dtype, double gradient, double eps) {
  Tensor w = ones({1}, dtype).set_requires_grad();
  optim::Adam adam({w}, {.lr = 0.01, .eps = eps, .precision = {.pure_arithmetic = all_in_dtype}});
  w.set_grad(full({1}, gradient, dtype));
  adam.step();
  return w.item();
}

double shown(double x) { return std::isnan(x) ? std::fabs(x) : x; }  // the sign of a NaN means nothing

}  // namespace

int main() {
  std::printf("variance by ops        f32    f16   bf16\n");
  for (const double center : {10.0, 100.0, 300.0}) {
    std::printf("%3g - 1 and %3g + 1", center, center);
    for (const DType t : {DType::f32, DType::f16, DType::bf16})
      std::printf(" %6g", shown(variance_by_ops(around(center, t)).item()));
    std::printf("\n");
  }
  std::printf("the op layer_norm, f16: 301 becomes %g\n", layer_norm(around(300, DType::f16), 2)[0][1].item());

  const Tensor logits = tensor({{0, 12, 20}}, options_of(DType::f16));
  const Tensor label = from_data(std::vector<std::int64_t>{0}, {1});
  std::printf("\nf16 softmax of 0, 12, 20, the last: by ops %g, the op %g\n",
              shown(softmax_by_ops(logits)[0][2].item()), softmax(logits, 1)[0][2].item());
  std::printf("the loss -log(p) of the first: by ops %g, cross_entropy %g\n", (-log(softmax(logits, 1)[0][0])).item(),
              cross_entropy(logits, label).item());
  {
    const amp::Autocast scope({.dtype = DType::f16});
    std::printf("by ops under autocast: %g\n", softmax_by_ops(logits)[0][2].item());
  }

  std::printf("\nAdam on an f16 weight, gradient 0.0001\n");
  std::printf("in f16, eps 1e-8, which is %g in f16: %g\n", full({1}, 1e-8, DType::f16).item(),
              adam_step(DType::f16, true, 1e-4, 1e-8));
  std::printf("in f16, eps 1e-3: %.4f\n", adam_step(DType::f16, true, 1e-4, 1e-3));
  std::printf("in f32, eps 1e-8: %.4f\n", adam_step(DType::f16, false, 1e-4, 1e-8));
}
