// The graph of a norm's gradient, of numbers whose squares leave the range of the format.
#include <doctest/doctest.h>
#include <gradual/autograd/autograd.h>
#include <gradual/core/ops/derived_ops.h>
#include <gradual/core/ops/ops.h>

#include <cmath>
#include <vector>

using namespace gradual;

namespace {

using Norm = Tensor (*)(const Tensor& x);

// The gradients of the sum of `weights` times the slope, by x and by dy. The slope is multiplied by 2^exponent, so that
// all numbers stay in range.
struct Second {
  std::vector<double> by_x, by_dy;
};
Second second(Norm f, const Tensor& at, const Tensor& weights, int exponent) {
  const Tensor x = at.clone().set_requires_grad();
  const Tensor y = f(x);
  const Tensor dy = (flip(weights, {0}) * std::ldexp(1.0, exponent)).set_requires_grad();
  const Tensor slope = autograd::grad({y}, {x}, {dy}, {.create_graph = true})[0];
  const std::vector<Tensor> g = autograd::grad({slope}, {x, dy}, {weights * std::ldexp(1.0, exponent)});
  return {g[0].to_vector<double>(), g[1].to_vector<double>()};
}

}  // namespace

TEST_CASE("second derivatives of norms of huge and tiny numbers are those of ordinary ones, scaled") {
  const Norm norms[] = {[](const Tensor& x) { return layer_norm(x, 1, {}, {}, 0); },
                        [](const Tensor& x) { return rms_norm(x, 1, {}, 0); },
                        [](const Tensor& x) { return batch_norm(x, {}, {}, {}, {}, true, 0).y; }};
  for (const DType dtype : {DType::f32, DType::f64}) {
    Generator g(1);
    const Tensor x = randn({6, 5}, {.dtype = dtype}, g);
    const Tensor weights = randn({6, 5}, {.dtype = dtype}, g);
    for (const int power : dtype == DType::f64 ? std::vector{600, -530} : std::vector{70, -70}) {
      CAPTURE(to_string(dtype));
      CAPTURE(power);
      for (const Norm f : norms) {
        const Second near = second(f, x, weights, 0);
        const Second far = second(f, x * std::ldexp(1.0, power), weights, power);  // both slopes have 1 / 2^power
        for (std::size_t i = 0; i < near.by_x.size(); ++i) {
          const double tolerance = 64 * float_info(dtype).epsilon;
          CHECK(std::fabs(far.by_x[i] - near.by_x[i]) <= tolerance * 16);
          CHECK(std::fabs(far.by_dy[i] - near.by_dy[i]) <= tolerance * 16);
        }
      }
    }
  }
}
