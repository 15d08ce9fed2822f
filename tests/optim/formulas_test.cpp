// SGD, Adam and AdamW against their formulas in double.
#include <doctest/doctest.h>

#include <cstring>

#include "gradual/core/formats/cast_counts.h"
#include "gradual/core/support/threads.h"
#include "helpers.h"
#include "support/cpu_isas.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

constexpr int kSteps = 12;
constexpr std::size_t kSize = 2500;  // more than two blocks of the kernel, and no multiple of one

// Runs both for several steps and bounds the difference: each step rounds the weight once, and a chain of at most ten
// operations in the step, which is at most `reach` in size.
template <class Reference>
void compare(Optimizer& optimizer, const Tensor& p, Reference reference, double reach, std::uint64_t seed) {
  Values w = p.to_vector<double>();
  const double epsilon = p.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
  for (int step = 0; step < kSteps; ++step) {
    const Values g = rounded(numbers(kSize, seed + static_cast<std::uint64_t>(step)), p.dtype());
    set_gradient(p, g);
    optimizer.step();
    reference.step(w, g);
    CHECK(max_difference(p.to_vector<double>(), w) <= (step + 1) * epsilon * (2 + 10 * reach));
  }
}

}  // namespace

TEST_CASE("SGD follows its formula") {
  struct Case {
    const char* what;
    SGDOptions o;
  };
  const Case cases[] = {
      {"plain", {.lr = 0.1}},
      {"decay", {.lr = 0.1, .weight_decay = 0.05}},
      {"momentum", {.lr = 0.05, .momentum = 0.9}},
      {"dampening", {.lr = 0.05, .momentum = 0.9, .dampening = 0.3}},
      {"nesterov", {.lr = 0.05, .momentum = 0.8, .nesterov = true}},
      {"everything", {.lr = 0.05, .momentum = 0.8, .weight_decay = 0.01, .nesterov = true}},
      {"dampening and decay", {.lr = 0.05, .momentum = 0.8, .dampening = 0.1, .weight_decay = 0.01}},
  };
  for (DType dtype : {DType::f32, DType::f64}) {
    for (const Case& c : cases) {
      CAPTURE(c.what);
      CAPTURE(to_string(dtype));
      const Tensor p = leaf(numbers(kSize, 1), dtype);
      SGD sgd({p}, c.o);
      // |m| stays below the sum of the gradients
      compare(sgd, p, ReferenceSGD{c.o.lr, c.o.momentum, c.o.dampening, c.o.weight_decay, c.o.nesterov},
              c.o.lr * kSteps * 2, 100);
    }
  }
}

TEST_CASE("momentum that decays to subnormal numbers has the bits of one multiplication after another") {
  constexpr std::size_t kNumbers = 300;  // whole runs of the kernel and a rest
  constexpr float kRate = 0.5F;
  constexpr float kMomentum = 0.9F;
  const auto gradient = [](std::size_t i, int step) {  // every third weight has none after the first step
    const float x = static_cast<float>(i % 7) - 2.5F;
    return i % 3 != 0 ? x : step > 0 ? 0 : std::ldexp(x, -100 - static_cast<int>(i % 48));
  };
  reference::for_each_isa([&](CpuIsa isa) {
    CAPTURE(to_string(isa));
    for (const bool nesterov : {false, true}) {
      std::vector<float> w(kNumbers, 0);
      std::vector<float> m(kNumbers, 0);
      std::vector<float> g(kNumbers);
      const Tensor p = leaf(Values(kNumbers, 0), DType::f32);
      SGD sgd({p}, {.lr = kRate, .momentum = kMomentum, .nesterov = nesterov});
      int subnormal = 0;
      for (int step = 0; step < 400; ++step) {
        for (std::size_t i = 0; i < kNumbers; ++i) {
          g[i] = gradient(i, step);
          m[i] = kMomentum * m[i] + g[i];
          w[i] -= kRate * (nesterov ? g[i] + kMomentum * m[i] : m[i]);
          subnormal += std::fpclassify(m[i]) == FP_SUBNORMAL;
        }
        set_gradient(p, Values(g.begin(), g.end()));
        sgd.step();
      }
      CHECK(subnormal > 1000);
      CHECK(std::memcmp(p.raw(), w.data(), p.nbytes()) == 0);
    }
  });
}

TEST_CASE("Adam and AdamW follow their formulas") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (double decay : {0.0, 0.1}) {
      for (bool decoupled : {false, true}) {
        CAPTURE(decay);
        CAPTURE(decoupled);
        const Tensor p = leaf(numbers(kSize, 2), dtype);
        std::unique_ptr<Optimizer> adam;
        if (decoupled) {
          adam = std::make_unique<AdamW>(std::vector<Tensor>{p},
                                         AdamWOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = decay});
        } else {
          adam = std::make_unique<Adam>(std::vector<Tensor>{p},
                                        AdamOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = decay});
        }
        // With these betas |m_hat| / sqrt(v_hat) stays below 3; m cancels where gradients do, so its error counts
        // against their size and not its own.
        compare(*adam, p, ReferenceAdam{0.02, 0.8, 0.95, 1e-8, decay, decoupled}, 0.02 * 40, 200);
      }
    }
  }
}

TEST_CASE("AdamW's defaults are PyTorch's") {
  const AdamWOptions w;
  CHECK(w.lr == 1e-3);
  CHECK(w.beta1 == 0.9);
  CHECK(w.beta2 == 0.999);
  CHECK(w.eps == 1e-8);
  CHECK(w.weight_decay == 0.01);
  CHECK(AdamOptions{}.weight_decay == 0);
}

TEST_CASE("a first Adam step has the size of the rate whatever the gradient's") {
  const Tensor p = leaf({1, 1, 1, 1});
  Adam adam({p}, {.lr = 0.25});
  set_gradient(p, {1e-3, 5, -2e6, 0});
  adam.step();
  const Values w = p.to_vector<double>();
  CHECK(w[0] == doctest::Approx(0.75).epsilon(1e-4));  // eps 1e-8 against 1e-3
  CHECK(w[1] == doctest::Approx(0.75).epsilon(1e-6));
  CHECK(w[2] == doctest::Approx(1.25).epsilon(1e-6));
  CHECK(w[3] == 1);
}

TEST_CASE("f16 and bf16 parameters: f32 arithmetic, one rounding") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    const Values start = numbers(kSize, 3);
    const Values g = rounded(numbers(kSize, 4), dtype);
    const Tensor p = leaf(start, dtype);
    // The same step on an f32 copy, rounded afterwards.
    const Tensor wide = leaf(p.to_vector<double>());
    for (bool adam : {false, true}) {
      auto make = [&](const Tensor& t) -> std::unique_ptr<Optimizer> {
        if (adam) return std::make_unique<Adam>(std::vector<Tensor>{t}, AdamOptions{.lr = 0.03});
        return std::make_unique<SGD>(std::vector<Tensor>{t}, SGDOptions{.lr = 0.03, .momentum = 0.9});
      };
      wide.detach().copy_(p.detach());
      auto low_optimizer = make(p);
      auto wide_optimizer = make(wide);
      set_gradient(p, g);
      set_gradient(wide, g);
      low_optimizer->step();
      wide_optimizer->step();
      CHECK(same_bits(p, wide.detach().to(dtype)));
    }
  }
}

TEST_CASE("groups: own rates, inherited rates, frozen, missing gradients") {
  const Tensor a = leaf({1, 2});
  const Tensor b = leaf({1, 2});
  const Tensor c = leaf({1, 2});
  const Tensor d = leaf({1, 2});
  std::vector<ParamGroup> groups = {
      {.params = {a}, .lr = 0.5}, {.params = {b}, .weight_decay = 0.1}, {.params = {c}, .frozen = true}};
  SGD sgd(groups, {.lr = 0.25});
  sgd.add_param_group({.params = {d}, .names = {"d.weight"}, .momentum = 0.5});
  for (const Tensor& t : {a, b, c}) set_gradient(t, {1, -1});
  sgd.step();
  CHECK(a.to_vector<double>() == Values{0.5, 2.5});
  CHECK(max_difference(b.to_vector<double>(), {1 - 0.25 * 1.1, 2 + 0.25 * 0.8}) < 1e-6);
  CHECK(c.to_vector<double>() == Values{1, 2});  // frozen
  CHECK(d.to_vector<double>() == Values{1, 2});  // no gradient
  CHECK(sgd.param_groups()[1].lr == 0.25);
  CHECK(sgd.param_groups()[3].momentum == 0.5);
  CHECK(sgd.param_name(3) == "d.weight");
  CHECK(sgd.param_name(1) == "parameter 1");
  sgd.param_groups()[2].frozen = false;
  sgd.param_groups()[2].lr = 1;
  sgd.step();
  CHECK(c.to_vector<double>() == Values{0, 3});
  sgd.zero_grad();
  CHECK(!a.grad().defined());
  sgd.step();
  CHECK(c.to_vector<double>() == Values{0, 3});
}

TEST_CASE("a step writes through any layout and leaves gradients of any layout alone") {
  Generator g(5);
  const Tensor base = randn({6, 5}, {}, g);
  const Tensor straight = base.clone().set_requires_grad();
  const Tensor turned = base.t().contiguous().t().detach().set_requires_grad();
  REQUIRE(!turned.is_contiguous());
  SGD a({straight}, {.lr = 0.1, .momentum = 0.9});
  SGD b({turned}, {.lr = 0.1, .momentum = 0.9});
  for (int i = 0; i < 3; ++i) {
    const Tensor gradient = randn({6, 5}, {}, g);
    straight.set_grad(gradient);
    turned.set_grad(gradient.t().contiguous().t());
    a.step();
    b.step();
  }
  CHECK(!turned.is_contiguous());
  CHECK(same_bits(straight, turned));
  straight.set_grad(ones({1, 1}).expand({6, 5}));
  a.step();
  CHECK(straight.grad().to_vector<double>() == Values(30, 1.0));
}

TEST_CASE("a step bumps the version of everything it writes and leaves no graph") {
  const Tensor p = leaf({1, 2});
  AdamW adam({p});
  const Tensor loss = (p * p).sum();
  loss.backward({}, true);
  const auto before = p.version();
  adam.step();
  CHECK(p.version() > before);
  CHECK(p.is_leaf());
  CHECK(p.requires_grad());
  const Tensor m = adam.state_dict().tensor("params.0.exp_avg");
  CHECK(m.version() > 0);
  CHECK_THROWS_AS(loss.backward(), Error);  // p was saved for backward and is not what it was
}

TEST_CASE("state is counted as optimizer state, and its dtype is a choice") {
  const std::int64_t before = memory_stats()[Category::optimizer].current;
  const Tensor p = leaf(numbers(1000, 6), DType::bf16);
  set_gradient(p, numbers(1000, 7));
  {
    Adam adam({p});
    adam.step();
    CHECK(memory_stats()[Category::optimizer].current - before == 8000);
  }
  CHECK(memory_stats()[Category::optimizer].current == before);
  Adam adam({p}, {.precision = {.state_dtype = DType::bf16}});
  adam.step();
  CHECK(memory_stats()[Category::optimizer].current - before == 4000);
  CHECK(adam.state_dict().tensor("params.0.exp_avg_sq").dtype() == DType::bf16);
}

TEST_CASE("after the first step nothing is allocated") {
  const Tensor p = leaf(numbers(3000, 8));
  const Tensor q = leaf(numbers(3000, 9), DType::f16);
  SGD sgd({p, q}, {.lr = 0.1, .momentum = 0.9, .precision = {.update = LowPrecisionUpdate::masters}});
  set_gradient(p, numbers(3000, 10));
  set_gradient(q, numbers(3000, 11));
  sgd.step();
  reset_peak_memory();
  const std::int64_t current = memory_stats().total.current;
  sgd.step();
  CHECK(memory_stats().total.peak == current);
}

TEST_CASE("many threads, the same bits") {
  const Values start = numbers(200000, 12);
  const Values gradient = numbers(200000, 13);
  Tensor results[2];
  for (int threads : {1, 4}) {
    const ThreadsScope scope(threads);
    const Tensor p = leaf(start, DType::bf16);
    AdamW adam({p}, {.precision = {.update = LowPrecisionUpdate::stochastic, .seed = 3}});
    set_gradient(p, gradient);
    for (int i = 0; i < 3; ++i) adam.step();
    results[threads == 4] = p;
  }
  CHECK(same_bits(results[0], results[1]));
}

TEST_CASE("what rounding does in a step is counted") {
  const Tensor p = leaf({1, 1, 6e-8}, DType::f16);
  SGD sgd({p}, {.lr = 1});
  set_gradient(p, {-65504, 0.5, 6e-8});
  CastCounts counts;
  {
    const CountScope scope(&counts);
    sgd.step();
  }
  CHECK(counts.elements == 3);
  CHECK(counts.zeros == 1);
  set_gradient(p, {-65504, 0, 0});
  {
    const CountScope scope(&counts);
    sgd.step();
  }
  CHECK(counts.overflow == 1);
}

TEST_CASE("errors of groups and rates") {
  const Tensor p = leaf({1});
  CHECK(error_of([&] { SGD({p, p}); }).find("is in a group already") != std::string::npos);
  CHECK(error_of([&] {
          SGD sgd({p});
          sgd.add_param_group({.params = {p}});
        }).find("is in a group already") != std::string::npos);
  const Tensor both = zeros({4, 2});
  const auto view = [&](const Shape& sizes, const Shape& strides, std::int64_t offset) {
    return as_strided(both, sizes, strides, offset).set_requires_grad();
  };
  const Tensor left = view({4}, {2}, 0);
  const Tensor right = view({4}, {2}, 1);
  const Tensor row = view({2}, {1}, 2);
  CHECK_NOTHROW(SGD({left, right}));  // columns between each other
  CHECK_NOTHROW(SGD({row, view({2}, {1}, 4)}));
  CHECK(error_of([&] { SGD({left, row}); }).find("[2] shares memory with 'parameter 0' [4]") != std::string::npos);
  CHECK(error_of([&] {
          SGD sgd({left});
          sgd.add_param_group({.params = {row}});
        }).find("shares memory") != std::string::npos);
  CHECK(error_of([&] { SGD({both.narrow(1, 0, 1).expand({4, 3}), left}); }).find("shares memory") != std::string::npos);
  CHECK(error_of([&] { SGD(std::vector<Tensor>{}); }).find("it was given no parameters") != std::string::npos);
  CHECK(error_of([&] { SGD({p}, {.lr = -1}); }).find("lr -1 is out of range") != std::string::npos);
  CHECK(error_of([&] { Adam({p}, {.beta2 = 1}); }).find("beta2 1 is out of range; it must be in [0, 1)") !=
        std::string::npos);
  CHECK(error_of([&] { SGD({p}, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}); }).find("nesterov") !=
        std::string::npos);
  CHECK(error_of([&] { SGD({p * 2}); }).find("is the result of an op") != std::string::npos);
  CHECK(error_of([&] { SGD({zeros({2}, {.dtype = DType::i64})}); }).find("must be f64, f32, f16 or bf16, given i64") !=
        std::string::npos);
  CHECK(error_of([&] { SGD({Tensor()}); }).find("given none") != std::string::npos);
  CHECK(error_of([&] {
          SGD(std::vector<ParamGroup>{{.params = {p}, .names = {"a", "b"}}});
        }).find("1 parameters and 2 names") != std::string::npos);
  CHECK(error_of([&] {
          SGD({p}, {.precision = {.update = LowPrecisionUpdate::kahan, .pure_arithmetic = true}});
        }).find("needs LowPrecisionUpdate::none, not kahan") != std::string::npos);
  CHECK(error_of([&] { SGD({p}, {.precision = {.state_dtype = DType::f8e5m2}}); }).find("not f8e5m2") !=
        std::string::npos);
  SGD sgd({p});
  sgd.param_groups()[0].params.push_back(leaf({2}));
  CHECK(error_of([&] { sgd.step(); }).find("add parameters with add_param_group") != std::string::npos);
}
