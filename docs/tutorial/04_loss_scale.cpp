// Loss scale: gradients that are too small for f16, and the factor that saves them.
#include <gradual/gradual.h>

#include <cmath>
#include <cstdio>

using namespace gradual;

// 65536 weights in f16 with a master each. The target of weight i is 1, 1/2, 1/4, .. or 2^-15. The loss is the mean of
// all squared errors, so each gradient is 2 * error / 65536.
struct Training {
  static constexpr int kWeights = 65536;
  Tensor weights = zeros({kWeights}, DType::f16).set_requires_grad(), target;
  optim::SGD sgd{{weights}, {.lr = kWeights / 4.0, .precision = {.update = optim::LowPrecisionUpdate::masters}}};
  optim::GradScaler scaler;

  explicit Training(const optim::GradScalerOptions& options) : scaler(options) {
    std::vector<double> values(kWeights);
    for (int i = 0; i < kWeights; ++i) values[i] = std::ldexp(1.0, -(i % 16));
    target = from_data(values, {kWeights});
  }
  Tensor gradient() {  // scaled, as f16 holds it
    scaler.scale(mse_loss(weights.to(DType::f32), target)).backward();
    return weights.grad().to(DType::f32);
  }
  bool step() {  // true unless it was skipped
    gradient();
    const bool applied = scaler.step(sgd).applied();
    scaler.update();
    sgd.zero_grad();
    return applied;
  }
  // The share of the weights that lie within 1% of their target.
  double arrived() { return 100 * (abs(sgd.master(weights) - target) <= target * 0.01).mean().item(); }
};

int main() {
  std::printf("loss scale   gradients that become 0   Inf\n");
  for (const int power : {0, 4, 8, 16, 24, 31, 35}) {
    const Tensor g = Training({.init_scale = std::ldexp(1.0, power), .dynamic = false}).gradient();
    std::printf("2^%-10d %20.1f%% %8.1f%%\n", power, 100 * (g == 0).mean().item(),
                100 * (abs(g) > 65504).mean().item());
  }

  std::printf("\nscale   weights that arrive in 40 steps\n");
  for (const int power : {0, 4, 8, 16, 35}) {
    Training training({.init_scale = std::ldexp(1.0, power), .dynamic = false});
    for (int i = 0; i < 40; ++i) training.step();
    std::printf("2^%-5d %5.1f%%\n", power, training.arrived());
  }

  Training training({.init_scale = 0x1p33, .growth_interval = 6});
  std::printf("\n");
  for (int i = 0; i < 40; ++i) {
    const double power = std::log2(training.scaler.scale());
    std::printf("%s2^%g%s", training.step() ? "" : "skipped:", power, i % 10 == 9 ? "\n" : " ");
  }
  std::printf("arrived: %.1f%%\n", training.arrived());
}
