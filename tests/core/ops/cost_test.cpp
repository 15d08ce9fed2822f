// The floating-point operations that a profile says an op takes.
#include <doctest/doctest.h>
#include <gradual/gradual.h>

using namespace gradual;

TEST_CASE("cost: of the common ops") {
  const auto flops = [](const auto& f) {
    Profile profile;
    const ObserverScope scope(profile);
    f();
    return profile.total().flops;
  };
  const Tensor x = ones({2, 4, 8, 8});
  const Tensor w = ones({6, 4, 3, 3});
  CHECK(flops([&] { conv2d(x, w, {}, {.padding = 1}); }) == 2.0 * (2 * 6 * 8 * 8) * (4 * 9));
  CHECK(flops([&] {
          conv2d(x, ones({4, 2, 3, 3}), ones({4}), {.padding = 1, .groups = 2});
        }) == 2.0 * (2 * 4 * 64) * (2 * 9) + 2 * 4 * 64);
  CHECK(flops([&] { x + 1; }) == 512);
  CHECK(flops([&] { x.sum(); }) == 512);
  CHECK(flops([&] { linear(ones({3, 4}), ones({5, 4}), ones({5})); }) == 2.0 * 15 * 4 + 15);
  CHECK(flops([&] { x.transpose(0, 1); }) == 0);
  CHECK(flops([&] { x.clone(); }) == 0);
}

TEST_CASE("cost: a convolution's backward costs twice its forward") {
  Profile profile;
  const Tensor x = ones({2, 4, 8, 8}).set_requires_grad();
  const Tensor w = ones({6, 4, 3, 3}).set_requires_grad();
  const ObserverScope scope(profile);
  conv2d(x, w, {}, {.padding = 1}).sum().backward();
  double forward = 0;
  double backward = 0;
  for (const auto& e : profile.by_op()) {
    if (e.name == "conv2d") forward += e.flops;
    if (e.name.starts_with("conv2d_backward")) backward += e.flops;
  }
  CHECK(forward > 0);
  CHECK(backward == 2 * forward);
}
