// What convolutions ask of the emulated cuDNN.
#include <doctest/doctest.h>

#include <gradual/core/ops/compute_mode.h>
#include <gradual/gradual.h>
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

TEST_CASE("convolutions round to TF32 only if it is allowed") {
  const Tensor x = drawn({2, 8, 9, 7}, 1);
  const Tensor w = drawn({16, 8, 3, 3}, 2);
  const Tensor dy = drawn({2, 16, 7, 5}, 3);
  const auto made = [](const Tensor& a, const Tensor& b, const Tensor& d) {
    const ConvAttrs none;
    const ConvAttrs by_x{{}, {9, 7}};
    const ConvAttrs by_w{{}, {3, 3}};
    return std::vector<Tensor>{conv2d(a, b, {}, none), conv2d_backward_input(d, b, by_x),
                               conv2d_backward_weight(d, a, by_w)};
  };
  const Tensor gx = x.to(kGpu);
  const Tensor gw = w.to(kGpu);
  const Tensor gdy = dy.to(kGpu);
  const std::vector<Tensor> exact = made(x.to(DType::f64), w.to(DType::f64), dy.to(DType::f64));
  const std::vector<Tensor> plain = made(gx, gw, gdy);
  const MatmulPrecisionScope scope(MatmulPrecision::tf32);
  const std::vector<Tensor> rounded = made(gx, gw, gdy);
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    const auto far = [&](const Tensor& y) { return absmax(y.to(Device::cpu()).to(DType::f64) - exact[i]); };
    CHECK(far(plain[i]) < 1e-4);
    CHECK(far(rounded[i]) > 1e-4);
  }
}

}  // namespace
}  // namespace gradual
