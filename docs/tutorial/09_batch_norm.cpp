// Batch norm and softmax in low precision: running statistics that stop, and probabilities that vanish.
#include <gradual/gradual.h>

#include <cstdio>

using namespace gradual;

namespace {

// What batch norm keeps for use after training: running += momentum * (mean of the batch - running).
double running_mean(DType dtype, double momentum, double batch_mean, int steps) {
  Tensor running = zeros({1}, dtype);
  const Tensor mean = full({1}, batch_mean, dtype);
  for (int i = 0; i < steps; ++i) running = running + (mean - running) * momentum;
  return running.item();
}

// The sum of the n equal probabilities of a softmax, each rounded to the format.
double kept(const char* name, int n, double scale) {
  const Tensor p = softmax(zeros({1, n}), 1);
  return fake_quantize(p * scale, {.format = format(name)}).sum().item() / scale;
}

// One number after another is added in the dtype, as a loop would do it.
double loop_sum(DType dtype, int n) {
  Tensor sum = zeros({1}, dtype);
  const Tensor e = exp(zeros({1}, dtype));
  for (int i = 0; i < n; ++i) sum = sum + e;
  return sum.item();
}

}  // namespace

int main() {
  std::printf("running mean after 2000 batches of mean 100\nmomentum      f32      f16     bf16\n");
  for (const double momentum : {0.1, 0.01, 0.001}) {
    std::printf("%-8g", momentum);
    for (const DType t : {DType::f32, DType::f16, DType::bf16})
      std::printf(" %8.2f", running_mean(t, momentum, 100, 2000));
    std::printf("\n");
  }

  nn::BatchNorm1d norm(4);
  amp::RecipeRun run(amp::recipe("bf16-master"), norm, optim::SGDOptions{});
  std::printf("\nunder bf16-master: weight %s, running_mean %s\n", to_string(norm.weight.dtype()).data(),
              to_string(norm.running_mean.dtype()).data());

  std::printf("\nexponentials of equal scores, added one by one\n  n      f16     bf16\n");
  for (const int n : {100, 1000, 4000})
    std::printf("%-5d %6g %8g\n", n, loop_sum(DType::f16, n), loop_sum(DType::bf16, n));

  std::printf("\nsum of n equal probabilities\n  n     fp16   e4m3fn   e4m3fn of 256 p\n");
  for (const int n : {64, 512, 1000, 1024, 4096})
    std::printf("%-5d %6.3f %8.3f %10.3f\n", n, kept("fp16", n, 1), kept("e4m3fn", n, 1), kept("e4m3fn", n, 256));
}
