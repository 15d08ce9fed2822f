// One training step as a user outside the tree writes it, by every instruction set; ends with status 0 when the
// gradient is right.
#include <gradual/gradual.h>
#include <gradual/version.h>

#include <cmath>
#include <cstdio>
#include <string>

static bool train() {
  gradual::Tensor w = gradual::full({2, 300}, 0.5, {.requires_grad = true});
  const gradual::Tensor x = gradual::ones({4, 2});
  const gradual::Tensor loss = x.matmul(w).square().mean();
  loss.backward();

  // Every output is 1, so dL/dw = sum over 4 rows of 2 * 1 * 1 / 1200.
  const double gradient = w.grad().select(0, 0).select(0, 0).item();
  std::printf("gradual %s, %s: loss %g, gradient %g\n", GRADUAL_VERSION,
              std::string(to_string(gradual::cpu_isa())).c_str(), loss.item(), gradient);
  return std::abs(loss.item() - 1.0) < 1e-6 && std::abs(gradient - 8.0 / 1200.0) < 1e-6;
}

int main() {
  bool right = true;
  for (const gradual::CpuIsa isa : gradual::cpu_isas()) {
    gradual::set_cpu_isa(isa);
    right = train() && right;
  }
  return right ? 0 : 1;
}
