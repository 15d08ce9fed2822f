// One training step as a user outside the tree writes it; ends with status 0 when the gradient is right.
#include <gradual/gradual.h>
#include <gradual/version.h>

#include <cmath>
#include <cstdio>

int main() {
  gradual::Tensor w = gradual::full({2, 3}, 0.5, {.requires_grad = true});
  const gradual::Tensor x = gradual::ones({4, 2});
  const gradual::Tensor loss = x.matmul(w).square().mean();
  loss.backward();

  // Every output is 1, so dL/dw = sum over 4 rows of 2 * 1 * 1 / 12.
  const double gradient = w.grad().select(0, 0).select(0, 0).item();
  std::printf("gradual %s: loss %g\n%s\n", GRADUAL_VERSION, loss.item(), gradual::to_string(w.grad()).c_str());
  return std::abs(loss.item() - 1.0) < 1e-6 && std::abs(gradient - 8.0 / 12.0) < 1e-6 ? 0 : 1;
}
