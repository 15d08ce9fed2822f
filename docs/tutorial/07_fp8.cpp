// FP8 and block scales: few bits reach far if each group of numbers has its own scale.
#include <gradual/gradual.h>

#include <cmath>
#include <cstdio>

using namespace gradual;

namespace {

constexpr const char* kFormats[] = {"e4m3fn", "e5m2", "e2m1fn"};

// 64 numbers: 32 from 0.0001 to 0.0032, then 32 from 100 to 3200.
Tensor small_and_large() {
  std::vector<double> x(64);
  for (int i = 0; i < 64; ++i) x[i] = i < 32 ? 0.0001 * (i + 1) : 100.0 * (i - 31);
  return from_data(x, {1, 64});
}

// The root mean square of y - x in percent of that of x.
double error(const Tensor& x, const Tensor& y) {
  return 100 * std::sqrt(square(x - y).sum().item() / square(x).sum().item());
}

}  // namespace

int main() {
  std::printf("format     largest   smallest   gap at 1\n");
  for (const char* name : kFormats) {
    const Format f = format(name);
    std::printf("%-8s %9g %10.3g %10g\n", name, f.max(), f.min_positive(), f.epsilon());
  }

  const Tensor x = small_and_large();
  const std::pair<const char*, Scaling> scalings[] = {
      {"no scale", NoScale{}}, {"one scale", TensorScale{}}, {"blocks of 32", PowerBlocks{.block = 32}}};
  std::printf("\nerror                  small half   large half\n");
  for (const char* name : kFormats)
    for (const auto& [what, scaling] : scalings) {
      const Tensor y = fake_quantize(x, {.format = format(name), .scaling = scaling});
      const auto error_from = [&](int i) { return error(x.narrow(1, i, 32), y.narrow(1, i, 32)); };
      std::printf("%-8s %-12s %10.1f%% %11.1f%%\n", name, what, error_from(0), error_from(32));
    }

  std::printf("\na product of random matrices\n");
  manual_seed(0);
  const Tensor a = randn({64, 64}), b = randn({64, 64}), right = matmul(a, b);
  for (const char* name : {"amp-bf16", "fp8-current", "mxfp8", "mxfp6", "nvfp4", "mxfp4"}) {
    const amp::RecipeScope scope(amp::recipe(name));
    std::printf("%-12s %5.1f%%\n", name, error(right, matmul(a, b).to(DType::f32)));
  }
}
