#include <doctest/doctest.h>

#include "gradual/optim/clip.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

TEST_CASE("clip_grad_norm_ scales all gradients by one factor and returns the norm before") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const Tensor a = leaf({0, 0}, dtype);
    const Tensor b = leaf({0}, dtype);
    const Tensor none = leaf({0}, dtype);
    SGD sgd({a, b, none});
    const auto reset = [&] {
      set_gradient(a, {3, 0});
      set_gradient(b, {-4});
    };
    reset();
    CHECK(clip_grad_norm_(sgd, 1) == doctest::Approx(5));
    CHECK(max_difference(a.grad().to_vector<double>(), {0.6, 0}) < 1e-6);
    CHECK(max_difference(b.grad().to_vector<double>(), {-0.8}) < 1e-6);
    CHECK(clip_grad_norm_(sgd, 10) == doctest::Approx(1).epsilon(1e-5));  // already small: untouched
    reset();
    CHECK(clip_grad_norm_(sgd, 5.1) == doctest::Approx(5));
    CHECK(a.grad().to_vector<double>() == Values{3, 0});
    CHECK(clip_grad_norm_(sgd, 3.5, {.p = 1}) == doctest::Approx(7));
    CHECK(a.grad().to_vector<double>()[0] == doctest::Approx(1.5).epsilon(1e-5));
    reset();
    CHECK(clip_grad_norm_({a, b, none}, 1, {.p = INFINITY}) == 4);
    CHECK(b.grad().to_vector<double>()[0] == doctest::Approx(-1).epsilon(1e-5));
    reset();
    CHECK(clip_grad_norm_({a}, 1) == doctest::Approx(3));
    CHECK(b.grad().to_vector<double>()[0] == -4);
  }
  const Tensor a = leaf({0}, DType::f64);
  const Tensor b = leaf({0}, DType::f64);
  set_gradient(a, {3e150});
  set_gradient(b, {4e100 + 1e88});
  CHECK(clip_grad_norm_({a, b}, 1e300) == 3e150);  // no f32 in between
  CHECK(clip_grad_norm_({b}, 1e300) == 4e100 + 1e88);
  const std::vector<Tensor> empty;
  CHECK(clip_grad_norm_(empty, 1) == 0);
  CHECK_THROWS_AS(clip_grad_norm_(empty, -1), Error);
  CHECK_THROWS_AS(clip_grad_norm_(empty, 1, {.p = 0}), Error);
}

TEST_CASE("a norm that is not finite leaves the gradients unchanged and is reported") {
  const Tensor p = leaf({0, 0});
  SGD sgd({p});
  for (double p_norm : {2.0, 1.0, static_cast<double>(INFINITY)}) {
    set_gradient(p, {INFINITY, 1});
    CHECK(std::isinf(clip_grad_norm_(sgd, 1, {.p = p_norm})));
    CHECK(p.grad().to_vector<double>()[1] == 1);
    set_gradient(p, {NAN, 1});
    CHECK(std::isnan(clip_grad_norm_(sgd, 1, {.p = p_norm})));
    CHECK(p.grad().to_vector<double>()[1] == 1);
    CHECK_THROWS_AS(clip_grad_norm_(sgd, 1, {.p = p_norm, .error_if_nonfinite = true}), Error);
  }
}

TEST_CASE("clip_grad_value_") {
  const Tensor p = leaf({0, 0, 0});
  SGD sgd({p});
  set_gradient(p, {-3, 0.5, 7});
  clip_grad_value_(sgd, 2);
  CHECK(p.grad().to_vector<double>() == Values{-2, 0.5, 2});
  clip_grad_value_(std::vector<Tensor>{p}, 1);
  CHECK(p.grad().to_vector<double>() == Values{-1, 0.5, 1});
  CHECK_THROWS_AS(clip_grad_value_(sgd, NAN), Error);
}

TEST_CASE("a norm beyond f16 is clipped in FP32, and the step takes the clipped gradients") {
  // Four times 60000: the norm is 120000, which f16 does not hold.
  const Tensor p = leaf({0, 0, 0, 0}, DType::f16);
  SGD sgd({p}, {.lr = 1, .precision = {.update = LowPrecisionUpdate::masters}});
  set_gradient(p, Values(4, 60000));
  const std::int64_t before = memory_stats()[Category::gradients].current;
  CHECK(clip_grad_norm_(sgd, 1) == doctest::Approx(120000));
  CHECK(memory_stats()[Category::gradients].current - before == 16);
  CHECK(p.grad().to_vector<double>() == rounded(Values(4, 60000), DType::f16));
  sgd.step();
  CHECK(max_difference(sgd.master(p).to_vector<double>(), Values(4, -0.5)) < 1e-6);
  // The next step's gradient is its own, also where it was written into the old tensor.
  p.grad().fill_(1);
  sgd.step();
  CHECK(max_difference(sgd.master(p).to_vector<double>(), Values(4, -1.5)) < 1e-6);
  // Clipped, then replaced before the step: the new one counts.
  clip_grad_norm_(sgd, 0.5);
  set_gradient(p, Values(4, 2));
  sgd.step();
  CHECK(max_difference(sgd.master(p).to_vector<double>(), Values(4, -3.5)) < 1e-6);
  clip_grad_norm_(sgd, 0.5);
  p.grad().add_(1);
  sgd.step();
  CHECK(max_difference(sgd.master(p).to_vector<double>(), Values(4, -6.5)) < 1e-6);
  // Clipping by value works on the same gradients.
  set_gradient(p, Values(4, 3));
  clip_grad_value_(sgd, 0.25);
  sgd.step();
  CHECK(max_difference(sgd.master(p).to_vector<double>(), Values(4, -6.75)) < 1e-6);
}

TEST_CASE("frozen groups are not clipped") {
  const Tensor a = leaf({0});
  const Tensor b = leaf({0});
  SGD sgd(std::vector<ParamGroup>{{.params = {a}}, {.params = {b}, .frozen = true}});
  set_gradient(a, {1});
  set_gradient(b, {100});
  CHECK(clip_grad_norm_(sgd, 2) == 1);
  CHECK(b.grad().item() == 100);
}
