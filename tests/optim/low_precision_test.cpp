// FP32 masters, Kahan compensation, stochastic rounding, and what happens without them.
#include <doctest/doctest.h>

#include <bit>

#include "gradual/core/formats/convert.h"
#include "gradual/core/formats/float_types.h"
#include "gradual/core/support/philox.h"
#include "gradual/optim/clip.h"
#include "gradual/optim/grad_scaler.h"
#include "helpers.h"
#include "support/bf16.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

using gradual::testing::bf16;

constexpr std::size_t kSize = 1500;

std::unique_ptr<Optimizer> make(bool adam, const std::vector<Tensor>& params, const UpdateOptions& precision) {
  if (adam) return std::make_unique<AdamW>(params, AdamWOptions{.lr = 3e-3, .precision = precision});
  return std::make_unique<SGD>(params, SGDOptions{.lr = 3e-3, .momentum = 0.9, .precision = precision});
}

// What Module::to does to a parameter.
void cast_in_place(const Tensor& p, DType dtype) {
  const NoGrad no_grad;
  p.swap_data(p.detach().to(dtype));
}

double mean_of(const Tensor& t) {
  double sum = 0;
  for (double v : t.to_vector<double>()) sum += v;
  return sum / static_cast<double>(t.numel());
}

}  // namespace

TEST_CASE("masters are an f32 run to the bit, rounded into the parameter") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (bool adam : {false, true}) {
      CAPTURE(to_string(dtype));
      CAPTURE(adam);
      const Values start = numbers(kSize, 1);
      const Tensor control = leaf(start);
      const Tensor p = leaf(start);
      auto reference = make(adam, {control}, {});
      auto optimizer = make(adam, {p}, {.update = LowPrecisionUpdate::masters});
      cast_in_place(p, dtype);  // the masters took the FP32 values before
      CHECK(same_bits(optimizer->master(p), control));
      for (std::uint64_t step = 0; step < 10; ++step) {
        const Values g = rounded(numbers(kSize, 10 + step), dtype);
        set_gradient(p, g);
        set_gradient(control, g);
        optimizer->step();
        reference->step();
        CHECK(same_bits(optimizer->master(p), control));
        CHECK(same_bits(p, control.detach().to(dtype)));
      }
    }
  }
}

TEST_CASE("flat masters give the same bits, in one buffer") {
  const DType dtype = DType::f16;
  std::vector<Tensor> a, b;
  for (std::size_t n : {7u, 300u, 1u, 1024u}) {
    a.push_back(leaf(numbers(n, n)));
    b.push_back(leaf(numbers(n, n)));
  }
  auto one = make(true, a, {.update = LowPrecisionUpdate::masters});
  auto flat = make(true, b, {.update = LowPrecisionUpdate::masters, .flat_masters = true});
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (i == 2) continue;  // a norm layer's parameter stays in f32
    cast_in_place(a[i], dtype);
    cast_in_place(b[i], dtype);
  }
  for (std::uint64_t step = 0; step < 4; ++step) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const Values g = numbers(static_cast<std::size_t>(a[i].numel()), 50 + step);
      set_gradient(a[i], g);
      set_gradient(b[i], g);
    }
    clip_grad_norm_(*one, 1.0);
    clip_grad_norm_(*flat, 1.0);
    one->step();
    flat->step();
    for (std::size_t i = 0; i < a.size(); ++i) {
      CHECK(same_bits(a[i], b[i]));
      CHECK(same_bits(one->master(a[i]), flat->master(b[i])));
    }
  }
  CHECK(flat->master(b[0]).shares_storage(flat->master(b[3])));
  CHECK(flat->master(b[2]).is_same(b[2]));
  CHECK(!one->master(a[0]).shares_storage(one->master(a[3])));
}

TEST_CASE("masters are counted as masters, and f32 parameters lose theirs at the first step") {
  const std::int64_t before = memory_stats()[Category::masters].current;
  const auto held = [&] { return memory_stats()[Category::masters].current - before; };
  for (bool flat : {false, true}) {
    const Tensor p = leaf(numbers(1000, 1));
    const Tensor q = leaf(numbers(500, 2));
    auto optimizer = make(false, {p, q}, {.update = LowPrecisionUpdate::masters, .flat_masters = flat});
    CHECK(held() == 6000);
    cast_in_place(p, DType::f16);
    set_gradient(p, numbers(1000, 3));
    set_gradient(q, numbers(500, 3));
    optimizer->step();
    CHECK(held() == 4000);
    CHECK(optimizer->master(q).is_same(q));
  }
  CHECK(held() == 0);
}

TEST_CASE("a parameter changed by other code refreshes its master") {
  for (bool flat : {false, true}) {
    const Tensor p = leaf({0.1, 0.2, 0.3, 0.4});
    SGD sgd({p}, {.lr = 1, .precision = {.update = LowPrecisionUpdate::masters, .flat_masters = flat}});
    cast_in_place(p, DType::f16);
    const Values kept = sgd.master(p).to_vector<double>();
    CHECK(kept[0] == static_cast<double>(0.1f));  // not what f16 makes of it
    {
      const NoGrad no_grad;
      p.narrow(0, 1, 1).fill_(5);
    }
    Values now = sgd.master(p).to_vector<double>();
    CHECK(now[1] == 5);
    CHECK(now[0] == kept[0]);  // what was not changed keeps its bits
    CHECK(now[3] == kept[3]);
    {
      const NoGrad no_grad;
      p.copy_(from_data(Values{1, 2, 3, 4}, {4}));
    }
    set_gradient(p, {0.5, 0.5, 0.5, 0.5});
    sgd.step();
    CHECK(sgd.master(p).to_vector<double>() == Values{0.5, 1.5, 2.5, 3.5});
    CHECK(p.to_vector<double>() == Values{0.5, 1.5, 2.5, 3.5});
    // New values loaded between construction and the cast count as well.
    const Tensor q = leaf({0.1, 0.2});
    SGD late({q}, {.precision = {.update = LowPrecisionUpdate::masters}});
    {
      const NoGrad no_grad;
      q.copy_(from_data(Values{7, 0.2}, {2}));
    }
    cast_in_place(q, DType::bf16);
    CHECK(late.master(q).to_vector<double>() == Values{7, static_cast<double>(0.2f)});
  }
}

TEST_CASE("without masters a parameter is its own, and only parameters have one") {
  const Tensor p = leaf({1, 1}, DType::bf16);
  SGD plain({p});
  CHECK(plain.master(p).is_same(p));
  CHECK(error_of([&] { plain.master(leaf({1})); }).find("is not one of its parameters") != std::string::npos);
}

TEST_CASE("small updates vanish without masters, and each cure saves them") {
  // 1 + 2^-13 is a quarter of an ulp above 1 in f16; 1000 of them are 0.122.
  const int steps = 1000;
  const double lr = 0x1p-13;
  for (LowPrecisionUpdate update : {LowPrecisionUpdate::none, LowPrecisionUpdate::masters, LowPrecisionUpdate::kahan,
                                    LowPrecisionUpdate::stochastic}) {
    CAPTURE(to_string(update));
    for (DType dtype : {DType::f16, DType::bf16}) {
      CAPTURE(to_string(dtype));
      const Tensor p = leaf(Values(1024, 1.0), dtype);
      SGD sgd({p}, {.lr = lr, .precision = {.update = update, .seed = 9}});
      set_gradient(p, Values(1024, -1.0));
      for (int i = 0; i < steps; ++i) sgd.step();
      const double wanted = 1 + lr * steps;
      const double ulp = float_info(dtype).epsilon;
      switch (update) {
        case LowPrecisionUpdate::none: CHECK(p.to_vector<double>() == Values(1024, 1.0)); break;
        case LowPrecisionUpdate::masters:
          CHECK(sgd.master(p).to_vector<double>() == Values(1024, wanted));
          CHECK(p.to_vector<double>() == rounded(Values(1024, wanted), dtype));
          break;
        case LowPrecisionUpdate::kahan: CHECK(std::abs(mean_of(p) - wanted) <= ulp); break;
        case LowPrecisionUpdate::eco: break;  // error_feedback_test.cpp
        case LowPrecisionUpdate::stochastic: {
          // Each step moves by one ulp with probability lr / ulp: a binomial per element, its mean over 1024 elements.
          const double probability = lr / ulp;
          const double sigma = ulp * std::sqrt(steps * probability * (1 - probability) / 1024);
          CHECK(std::abs(mean_of(p) - wanted) < 5 * sigma);
          CHECK(p.to_vector<double>() != Values(1024, p.to_vector<double>()[0]));  // by chance, element by element
          break;
        }
      }
    }
  }
}

TEST_CASE("Kahan compensation follows an f32 run within the pair's own precision") {
  const Values start = numbers(kSize, 1);
  const Tensor p = leaf(start, DType::bf16);
  const Tensor control = leaf(p.to_vector<double>());
  auto kahan = make(true, {p}, {.update = LowPrecisionUpdate::kahan});
  auto none = make(true, {leaf(start, DType::bf16)}, {});
  auto reference = make(true, {control}, {});
  const Tensor& uncured = none->param_groups()[0].params[0];
  for (std::uint64_t step = 0; step < 30; ++step) {
    const Values g = rounded(numbers(kSize, 20 + step), DType::bf16);
    for (const Tensor& t : {p, control, uncured}) set_gradient(t, g);
    kahan->step();
    reference->step();
    none->step();
  }
  // Weights stay below 2: the parameter's own rounding is at most 2^-8, and that of the compensation 2^-17 a step.
  const double pair = 30 * 0x1p-17;
  const double own = 0x1p-8;
  CHECK(max_difference(p.to_vector<double>(), control.to_vector<double>()) <= own + pair);
  CHECK(max_difference(uncured.to_vector<double>(), control.to_vector<double>()) > 2 * own);
  const Tensor c = kahan->state_dict().tensor("params.0.compensation");
  CHECK(c.dtype() == DType::bf16);
  Values sum = p.to_vector<double>();
  const Values lost = c.to_vector<double>();
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += lost[i];
  CHECK(max_difference(sum, control.to_vector<double>()) <= pair);
}

TEST_CASE("Kahan's updates: the bits of loops over numbers") {
  constexpr float kLr = 0x1p-10F;
  const Tensor p = leaf(numbers(kSize, 1), DType::bf16);
  std::vector<float> want = p.detach().to_vector<float>();
  std::vector<float> lost(kSize, 0);
  SGD sgd({p}, {.lr = kLr, .precision = {.update = LowPrecisionUpdate::kahan}});
  for (std::uint64_t step = 0; step < 20; ++step) {
    set_gradient(p, numbers(kSize, 10 + step));
    const std::vector<float> g = p.grad().to_vector<float>();
    for (std::size_t i = 0; i < kSize; ++i) {
      const float wide = want[i] + lost[i] - kLr * g[i];
      want[i] = bf16(wide);
      lost[i] = bf16(wide - want[i]);
    }
    sgd.step();
    CHECK(p.detach().to_vector<float>() == want);
    CHECK(sgd.state_dict().tensor("params.0.compensation").to_vector<float>() == lost);
  }
}

TEST_CASE("stochastic rounding depends on seed, step, parameter and element, and on nothing else") {
  const auto run = [](std::uint64_t seed) {
    const Tensor p = leaf(numbers(64, 1), DType::bf16);
    const Tensor q = leaf(numbers(64, 1), DType::bf16);
    SGD sgd({p, q}, {.lr = 1e-3, .precision = {.update = LowPrecisionUpdate::stochastic, .seed = seed}});
    set_gradient(p, numbers(64, 2));
    set_gradient(q, numbers(64, 2));
    default_generator().next();  // nobody else's numbers matter
    for (int i = 0; i < 5; ++i) sgd.step();
    return std::pair{p, q};
  };
  const auto [p1, q1] = run(1);
  const auto [p2, q2] = run(1);
  const auto [p3, q3] = run(2);
  CHECK(same_bits(p1, p2));
  CHECK(same_bits(q1, q2));
  CHECK(!same_bits(p1, q1));
  CHECK(!same_bits(p1, p3));
}

TEST_CASE("stochastic updates: the bits of loops over numbers") {
  constexpr std::uint64_t kSeed = 5;
  constexpr std::uint64_t kStreams = 0x6772616475616c21;  // apart from those of a Generator of the same seed
  constexpr float kLr = 0x1p-10F;                         // products with it are exact
  std::vector<Tensor> all = {leaf(numbers(kSize, 1), DType::bf16), leaf(numbers(7, 2), DType::bf16)};
  std::vector<std::vector<float>> want;
  for (const Tensor& p : all) want.push_back(p.detach().to_vector<float>());
  SGD sgd(all, {.lr = kLr, .precision = {.update = LowPrecisionUpdate::stochastic, .seed = kSeed}});
  for (std::uint64_t step = 0; step < 4; ++step) {
    for (std::size_t parameter = 0; parameter < all.size(); ++parameter) {
      std::vector<float>& w = want[parameter];
      set_gradient(all[parameter], numbers(w.size(), 10 * step + parameter));
      const std::vector<float> g = all[parameter].grad().to_vector<float>();
      for (std::size_t i = 0; i < w.size(); ++i) {
        const float wide = w[i] - kLr * g[i];
        // The lower 16 bits are dropped. A random number of 16 bits carries into the upper ones as often as they say.
        const std::uint32_t word = philox_word(kSeed ^ kStreams, (step << 24) + parameter, i);
        w[i] = std::bit_cast<float>((std::bit_cast<std::uint32_t>(wide) + (word >> 16)) & 0xffff0000U);
      }
    }
    sgd.step();
    for (std::size_t parameter = 0; parameter < all.size(); ++parameter)
      CHECK(all[parameter].detach().to_vector<float>() == want[parameter]);
  }
}

TEST_CASE("f32 and f64 parameters take no notice of the update's kind") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const Tensor control = leaf(numbers(kSize, 1), dtype);
    auto reference = make(true, {control}, {});
    set_gradient(control, numbers(kSize, 2));
    for (int i = 0; i < 3; ++i) reference->step();
    for (LowPrecisionUpdate update :
         {LowPrecisionUpdate::masters, LowPrecisionUpdate::kahan, LowPrecisionUpdate::stochastic}) {
      const Tensor p = leaf(numbers(kSize, 1), dtype);
      auto optimizer = make(true, {p}, {.update = update});
      set_gradient(p, numbers(kSize, 2));
      for (int i = 0; i < 3; ++i) optimizer->step();
      CHECK(same_bits(p, control));
      CHECK(!optimizer->state_dict().contains("params.0.compensation"));
      CHECK(!optimizer->state_dict().contains("params.0.master"));
    }
  }
}

TEST_CASE("pure arithmetic is the update composed of ops in the parameter's dtype") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    CAPTURE(to_string(dtype));
    const Tensor p = leaf(numbers(kSize, 1), dtype);
    SGD sgd({p}, {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .precision = {.pure_arithmetic = true}});
    Tensor w = p.detach().clone();
    Tensor m = zeros_like(w);
    for (std::uint64_t step = 0; step < 5; ++step) {
      set_gradient(p, numbers(kSize, 5 + step));
      sgd.step();
      // Each call rounds its result to the dtype; alpha and factors are numbers and are not rounded.
      const Tensor d = p.grad().clone();
      d.add_(w, 0.1);
      m.mul_(0.9);
      m.add_(d);
      w.add_(m, -0.01);
      CHECK(same_bits(p, w));
    }
    CHECK(sgd.state_dict().tensor("params.0.momentum").dtype() == dtype);
  }
}

TEST_CASE("pure Adam rounds after every operation") {
  for (bool decoupled : {false, true}) {
    const DType dtype = DType::f16;
    const Values start = rounded(numbers(kSize, 1), dtype);
    const Tensor p = leaf(start, dtype);
    const UpdateOptions pure{.pure_arithmetic = true};
    std::unique_ptr<Optimizer> optimizer;
    if (decoupled) {
      optimizer = std::make_unique<AdamW>(
          std::vector<Tensor>{p}, AdamWOptions{.lr = 0.01, .eps = 1e-4, .weight_decay = 0.1, .precision = pure});
    } else {
      optimizer = std::make_unique<Adam>(std::vector<Tensor>{p},
                                         AdamOptions{.lr = 0.01, .eps = 1e-4, .weight_decay = 0.1, .precision = pure});
    }
    const auto r = [](float x) { return static_cast<float>(Half(x)); };
    std::vector<float> w(start.begin(), start.end());
    std::vector<float> m(kSize);
    std::vector<float> v(kSize);
    for (int t = 1; t <= 4; ++t) {
      const Values g = rounded(numbers(kSize, 30 + static_cast<std::uint64_t>(t)), dtype);
      set_gradient(p, g);
      optimizer->step();
      const auto new1 = static_cast<float>(1 - 0.9);
      const auto old2 = static_cast<float>(0.999);
      const auto new2 = static_cast<float>(1 - 0.999);
      const auto keep = static_cast<float>(1 - 0.01 * 0.1);
      const auto rate = static_cast<float>(0.01 / (1 - std::pow(0.9, t)));
      const auto root = static_cast<float>(std::sqrt(1 - std::pow(0.999, t)));
      for (std::size_t i = 0; i < kSize; ++i) {
        auto d = static_cast<float>(g[i]);
        if (decoupled) {
          w[i] = r(w[i] * keep);
        } else {
          d = r(d + 0.1f * w[i]);
        }
        m[i] = r(m[i] + new1 * (d - m[i]));
        v[i] = r(r(old2 * v[i]) + new2 * d * d);
        const float below = r(r(r(std::sqrt(v[i])) / root) + static_cast<float>(1e-4));
        w[i] = r(w[i] - rate * m[i] / below);
      }
      CHECK(p.to_vector<double>() == Values(w.begin(), w.end()));
    }
  }
}

TEST_CASE("Adam wholly in f16: eps 1e-8 is 0 there, and a vanished second moment divides by it") {
  const auto step = [](double eps, bool pure) {
    const Tensor p = leaf({1, 1, 1}, DType::f16);
    AdamW adam({p}, {.lr = 1e-2, .eps = eps, .weight_decay = 0, .precision = {.pure_arithmetic = pure}});
    set_gradient(p, {1e-3, 0, 1});  // 1e-3 squared, times 1 - beta2, is under f16's smallest number
    adam.step();
    return p.to_vector<double>();
  };
  const Values broken = step(1e-8, true);
  CHECK(!std::isfinite(broken[0]));
  CHECK(std::isnan(broken[1]));  // 0 / 0
  CHECK(broken[2] == doctest::Approx(0.99).epsilon(0.001));
  for (double v : step(1e-3, true)) CHECK(std::isfinite(v));
  const Values sound = step(1e-8, false);
  CHECK(sound[0] == doctest::Approx(0.99).epsilon(0.001));
  CHECK(sound[1] == 1);
}

TEST_CASE("with masters gradients add up in f32: micro-batches that bf16 would drop arrive") {
  for (LowPrecisionUpdate update : {LowPrecisionUpdate::none, LowPrecisionUpdate::masters}) {
    CAPTURE(to_string(update));
    const Tensor p = leaf({0, 0}, DType::bf16);
    SGD sgd({p}, {.lr = 1, .precision = {.update = update}});
    p.sum().backward();
    for (int i = 0; i < 512; ++i) (p * 0.0009765625).sum().backward();
    sgd.step();
    const bool masters = update == LowPrecisionUpdate::masters;
    CHECK(sgd.master(p).to_vector<double>() == (masters ? Values{-1.5, -1.5} : Values{-1, -1}));
  }
}

TEST_CASE("f16 gradients whose sum passes 65504 are clipped and unscaled in f32 with masters") {
  for (bool unscale : {false, true}) {
    CAPTURE(unscale);
    const Tensor p = leaf({0}, DType::f16);
    SGD sgd({p}, {.lr = 1, .precision = {.update = LowPrecisionUpdate::masters}});
    GradScaler scaler({.init_scale = 32768});
    for (int i = 0; i < 4; ++i) scaler.scale(p.sum()).backward();
    if (unscale) {
      scaler.unscale_(sgd);
      CHECK(static_cast<double>(clip_grad_norm_(sgd, 100)) == 4);
    }
    CHECK(scaler.step(sgd).applied());
    CHECK(sgd.master(p).item() == -4);
  }
}

TEST_CASE("a parameter that requires no gradient stands still, also with an old gradient") {
  for (bool adam : {false, true}) {
    Tensor p = leaf({1, 2});
    const Tensor q = leaf({3});
    auto optimizer = make(adam, {p, q}, {});
    set_gradient(p, {1, 1});
    set_gradient(q, {1});
    p.set_requires_grad(false);
    CHECK(optimizer->step_gradients().size() == 1);
    optimizer->step();
    CHECK(p.to_vector<double>() == Values{1, 2});
    CHECK(q.item() < 3);
    p.set_requires_grad(true);
    optimizer->step();
    CHECK(p.to_vector<double>()[0] < 1);
  }
}
