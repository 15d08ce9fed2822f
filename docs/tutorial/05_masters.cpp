// Masters: an update that is smaller than the gap of its weight is lost, unless something keeps it.
#include <gradual/gradual.h>

#include <cmath>
#include <cstdio>

using namespace gradual;
using optim::LowPrecisionUpdate;

namespace {

constexpr double kLr = 1e-4;  // every gradient is 1, so this is the size of an update
constexpr int kSteps = 1000;

Tensor ones_in(DType dtype) { return ones({4096}, dtype); }

Tensor trained(LowPrecisionUpdate update) {
  Tensor w = ones_in(DType::f16).set_requires_grad();
  optim::SGD sgd({w}, {.lr = kLr, .precision = {.update = update}});
  for (int i = 0; i < kSteps; ++i) {
    w.set_grad(ones_in(DType::f16));
    sgd.step();
  }
  return w.detach().to(DType::f32);
}

Tensor trained_by_hand() {
  const Tensor master = ones_in(DType::f32);
  Tensor w = master.to(DType::f16);
  for (int i = 0; i < kSteps; ++i) {
    const Tensor gradient = ones_in(DType::f16);
    master.add_(gradient.to(DType::f32), -kLr);  // the sum is in f32,
    w = master.to(DType::f16);                   // the weight is its rounding
  }
  return w.to(DType::f32);
}

}  // namespace

int main() {
  for (const int n : {10, 11, 12, 13}) {
    const Tensor w = ones({1}, DType::f16), update = full({1}, -std::ldexp(1.0, -n), DType::f16);
    std::printf("f16: 1 - 2^-%d = %.7f\n", n, (w + update).item());
  }

  std::printf("\nweights after 1000 updates of -0.0001: mean, smallest, largest\n");
  for (const auto update : {LowPrecisionUpdate::none, LowPrecisionUpdate::masters, LowPrecisionUpdate::kahan,
                            LowPrecisionUpdate::stochastic}) {
    const Tensor w = trained(update);
    std::printf("%-10s  %.4f   %.3f   %.3f\n", to_string(update).data(), mean(w).item(), min(w).item(), max(w).item());
  }
  const bool same = (trained_by_hand() - trained(LowPrecisionUpdate::masters)).abs().max().item() == 0;
  std::printf("the master by hand gives the same numbers: %s\n", same ? "yes" : "no");
}
