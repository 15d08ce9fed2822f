// What the op table does not ask of softmax, cross entropy and the norms on a GPU: rows of every length that has its
// own way through the kernels, wherever they lie; images in both orders of memory; classes out of range.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <gradual/amp/autocast.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/observe/profile.h>
#include <gradual/cuda/cuda.h>
#include <gradual/gradual.h>
#include "../support/gradients.h"
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

// `y` has `dtype`; `want` was computed in f64. `size` is the magnitude of the terms, in addition to the result's own.
void check_close(const Tensor& y, const Tensor& want, double size = 0, double roundings = 64) {
  const std::vector<double> a = numbers(y);
  const std::vector<double> b = numbers(want);
  REQUIRE(a.size() == b.size());
  const FloatInfo info = float_info(y.dtype());
  const double store = y.dtype() == DType::f32 ? 0 : info.epsilon / 2;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double rounding = store * std::fabs(b[i]) + (store > 0 ? info.min_subnormal : 0);
    worst = std::max(worst, (std::fabs(a[i] - b[i]) - rounding) / (std::fabs(b[i]) + size + 1e-300));
  }
  CHECK(worst <= roundings * 0x1p-24);
}

// 16 is a thread's, 1024 a warp's, 8192 a block's; those beyond are read again.
constexpr std::int64_t kLengths[] = {1, 7, 16, 17, 40, 256, 257, 1000, 1024, 2048, 2050, 8192, 8200, 9001};

TEST_CASE("relu passes a gradient on where its result is NaN, alone and after batch norm") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const TensorOptions there{.dtype = dtype, .device = kGpu};
    const Tensor x = from_data(std::vector<double>{NAN, -NAN, -2, 2}, {4, 1}, there).set_requires_grad();
    const Tensor dy = from_data(std::vector<double>{3, 4, 5, 6}, {4, 1}, there);
    const Tensor mean = zeros({1}, {.device = kGpu});
    const Tensor var = ones({1}, {.device = kGpu});
    for (const Tensor& y : {relu(x), batch_norm(x, {}, {}, mean, var, false, 0, true).y}) {
      x.set_grad({});
      y.backward(dy);
      CHECK(numbers(x.grad()) == std::vector<double>{3, 4, 0, 6});
    }
  }
}

TEST_CASE("softmax and its backward for rows of every length") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t n : kLengths) {
      CAPTURE(n);
      const Tensor x = drawn({3, n}, 1, dtype);
      const Tensor wide = x.to(DType::f64);
      const Tensor dy = drawn({3, n}, 2, dtype);
      check_close(softmax(x.to(kGpu), 1), softmax(wide, 1));
      check_close(log_softmax(x.to(kGpu), 1), log_softmax(wide, 1), 1);
      check_close(softmax(x.t().contiguous().to(kGpu), 0), softmax(wide, 1).t());  // columns
      check_close(softmax(x.t().contiguous().to(kGpu).t(), 1), softmax(wide, 1));
      const Tensor y = softmax(wide, 1).to(dtype);
      check_close(softmax_backward(dy.to(kGpu), y.to(kGpu), 1),
                  softmax_backward(dy.to(DType::f64), y.to(DType::f64), 1), 1);
      const Tensor logs = log_softmax(wide, 1).to(dtype);
      check_close(log_softmax_backward(dy.to(kGpu), logs.to(kGpu), 1),
                  log_softmax_backward(dy.to(DType::f64), logs.to(DType::f64), 1), 4);
    }
  }
}

TEST_CASE("cross entropy for rows of every length") {
  if (!have_gpu()) return;
  for (const std::int64_t n : kLengths) {
    CAPTURE(n);
    const Tensor classes = from_data(std::vector<std::int64_t>{n / 2, 0, -100, n - 1}, {4});
    for (const Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
      for (const double smoothing : {0.0, 0.1}) {
        Tensor here = drawn({4, n}, 1).to(DType::f64);
        Tensor there = drawn({4, n}, 1).to(kGpu);
        here.set_requires_grad(true);
        there.set_requires_grad(true);
        const CrossEntropyOptions options{.reduction = r, .label_smoothing = smoothing};
        const Tensor want = cross_entropy(here, classes, options);
        const Tensor loss = cross_entropy(there, classes.to(kGpu), options);
        check_close(loss.detach(), want.detach(), 16);
        sum(want).backward();
        sum(loss).backward();
        check_close(there.grad(), here.grad(), 1);
      }
    }
  }
}

TEST_CASE("autocast's cross entropy widens the logits itself and has the bits of a cast") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const std::int64_t n : {10, 40, 1000, 9001, 9008})
      for (const Reduction r : {Reduction::mean, Reduction::none})
        for (const double smoothing : {0.0, 0.1}) {
          CAPTURE(to_string(dtype));
          CAPTURE(n);
          const Tensor classes = from_data(std::vector<std::int64_t>{n / 2, 0, -100, n - 1}, {4}).to(kGpu);
          Tensor loss[2], dx[2];
          for (const bool cast_before : {false, true}) {
            const Tensor x = drawn({4, n}, 1, dtype).to(kGpu).set_requires_grad();
            Profile profile;
            const ObserverScope observe(profile);
            const amp::Autocast scope({.dtype = dtype, .device = kGpu});
            loss[cast_before] = cross_entropy(cast_before ? x.to(DType::f32) : x, classes,
                                              {.reduction = r, .label_smoothing = smoothing});
            CHECK(loss[cast_before].dtype() == DType::f32);
            loss[cast_before].backward(full(loss[cast_before].sizes(), 3, {.device = kGpu}));
            dx[cast_before] = x.grad();
            CHECK(dx[cast_before].dtype() == dtype);
            CHECK((profile.table().find("cast ") != std::string::npos) == cast_before);
          }
          CHECK(same_numbers(loss[0], loss[1]));
          CHECK(same_numbers(dx[0], dx[1]));
        }
}

TEST_CASE("autocast's cross entropy has the bits of a cast of logits with gaps too") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const std::int64_t n : {1000, 9000, 9008}) {
      CAPTURE(to_string(dtype));
      CAPTURE(n);
      const Tensor classes = from_data(std::vector<std::int64_t>{n / 2, 0, -100, n - 1}, {4}).to(kGpu);
      const Tensor line = drawn({4 * n + 1}, 1, dtype).to(kGpu);
      const Tensor logits[] = {drawn({4, n + 1}, 1, dtype).to(kGpu).narrow(1, 0, n),
                               drawn({4, n + 8}, 1, dtype).to(kGpu).narrow(1, 8, n),
                               line.narrow(0, 1, 4 * n).view({4, n}),
                               line.narrow(0, 1, 4 * n).view({n, 4}).t(),
                               drawn({n, 4}, 1, dtype).to(kGpu).t(),
                               drawn({4, 1}, 1, dtype).to(kGpu).expand({4, n})};
      for (const Tensor& x : logits) {
        CAPTURE(to_string(x.strides()));
        const CrossEntropyOptions options{.reduction = Reduction::none, .label_smoothing = 0.1};
        const amp::Autocast scope({.dtype = dtype, .device = kGpu});
        const Tensor loss = cross_entropy(x, classes, options);
        CHECK(same_numbers(loss, cross_entropy(cast(x, DType::f32), classes, options)));
      }
    }
}

TEST_CASE("a class out of range is reported when the program waits for the device") {
  if (!have_gpu()) return;
  const Tensor x = drawn({3, 5}, 1).to(kGpu);
  const Tensor classes = from_data(std::vector<std::int64_t>{1, 5, -100}, {3}).to(kGpu);
  const auto expect_told = [] {
    try {
      cuda::synchronize();
      FAIL("no error");
    } catch (const Error& e) {
      const std::string text = e.what();
      CAPTURE(text);
      CHECK(text.find("cross_entropy") != std::string::npos);
      CHECK(text.find("5 (element 1") != std::string::npos);
      CHECK(text.find("0 to 4") != std::string::npos);
    }
  };
  const Tensor loss = cross_entropy(x, classes, {.reduction = Reduction::none});
  expect_told();
  CHECK(numbers(loss)[1] == 0);
  const Tensor dx = cross_entropy_backward(ones({3}, {.device = kGpu}), x, classes, {.reduction = Reduction::none});
  expect_told();
  CHECK(numbers(dx.select(0, 1)) == std::vector<double>(5));
}

TEST_CASE("layer and rms norm for rows of every length") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t n : kLengths) {
      if (n < 16) continue;  // with few values 1/sqrt of the variance enlarges errors
      CAPTURE(n);
      for (const bool center : {true, false}) {
        const auto run = [&](Device device, DType d) {
          std::vector<Tensor> leaves{drawn({5, n}, 1, dtype), drawn({n}, 2, dtype), drawn({n}, 3, dtype)};
          for (Tensor& t : leaves) {
            t = t.to(d).to(device).detach();
            t.set_requires_grad(true);
          }
          const Tensor y = center ? layer_norm(leaves[0], 1, leaves[1], leaves[2]) : rms_norm(leaves[0], 1, leaves[1]);
          y.backward(drawn({5, n}, 4, dtype).to(d).to(device));
          std::vector<Tensor> all{y.detach(), leaves[0].grad(), leaves[1].grad()};
          if (center) all.push_back(leaves[2].grad());
          return all;
        };
        const std::vector<Tensor> gpu = run(kGpu, dtype);
        const std::vector<Tensor> cpu = run(Device::cpu(), DType::f64);
        for (std::size_t i = 0; i < gpu.size(); ++i) {
          CAPTURE(i);
          check_close(gpu[i], cpu[i], 16);
        }
      }
    }
  }
}

TEST_CASE("batch norm of images in both orders of memory") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Shape& sizes : {Shape{3, 8, 4, 6}, Shape{3, 24, 5, 7}, Shape{2, 5, 8, 8}, Shape{40, 16, 1, 1},
                               Shape{3, 6, 14, 14}, Shape{2, 4, 3, 3}})
      for (const bool last : {false, true})
        for (const bool relu : {false, true})
          for (const bool training : {false, true}) {
            const std::int64_t c = sizes[1];
            const auto run = [&](Device device, DType d) {
              std::vector<Tensor> t{drawn(sizes, 1, dtype), drawn({c}, 2), drawn({c}, 3), drawn({c}, 4),
                                    add(abs(drawn({c}, 5)), 1)};
              for (Tensor& each : t) each = each.to(d == DType::f64 ? d : each.dtype()).to(device).detach();
              if (last) t[0] = channels_last(t[0]).detach();
              for (int i = 0; i < 3; ++i) t[static_cast<std::size_t>(i)].set_requires_grad(true);
              const Tensor y = batch_norm(t[0], t[1], t[2], t[3], t[4], training, 1e-5, relu).y;
              y.backward(drawn(sizes, 6, dtype).to(y.dtype()).to(device));
              return std::vector<Tensor>{y.detach(), t[0].grad(), t[1].grad(), t[2].grad()};
            };
            CAPTURE(to_string(sizes));
            CAPTURE(last);
            CAPTURE(relu);
            CAPTURE(training);
            const std::vector<Tensor> gpu = run(kGpu, dtype);
            const std::vector<Tensor> cpu = run(Device::cpu(), DType::f64);
            if (!training) CHECK(numbers(gpu[0]) == numbers(run(Device::cpu(), dtype)[0]));
            for (std::size_t i = 0; i < gpu.size(); ++i) {
              CAPTURE(i);
              check_close(gpu[i], cpu[i], 16);
            }
          }
}

TEST_CASE("batch norm of huge and tiny numbers is that of ordinary ones") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Shape& sizes : {Shape{300, 5}, Shape{40, 3, 7, 9}}) {
      const Tensor x = drawn(sizes, 1, dtype);
      const Tensor dy = drawn(sizes, 2, dtype).to(kGpu);
      const auto run = [&](const Tensor& of) {
        const auto [y, mean, invstd] = batch_norm(of.to(kGpu), {}, {}, {}, {}, true, 0);
        const Outputs r = batch_norm_backward(dy, of.to(kGpu), {}, mean, invstd, {.eps = 0});
        return std::vector<std::vector<double>>{numbers(y), numbers(invstd), numbers(r[0])};
      };
      const auto near = run(x);
      const int power = dtype == DType::f64 ? 600 : 80;
      for (const int exponent : {power, -power}) {
        CAPTURE(to_string(dtype));
        CAPTURE(to_string(sizes));
        CAPTURE(exponent);
        const auto far = run(x * std::ldexp(1.0, exponent));
        for (std::size_t k = 0; k < near.size(); ++k)
          for (std::size_t i = 0; i < near[k].size(); ++i)
            CHECK(std::fabs(std::ldexp(far[k][i], k == 0 ? 0 : exponent) - near[k][i]) <= 1e-5);
      }
    }
}

TEST_CASE("batch norm reads small planes in runs of eight adjacent elements") {
  if (!have_gpu()) return;
  const auto eval = [](const Tensor& x) {
    const std::int64_t c = x.size(1);
    const Tensor w = drawn({c}, 2);
    const Tensor mean = drawn({c}, 3);
    const Tensor var = add(abs(drawn({c}, 4)), 1);
    Tensor y;
    const auto names = kernels_of([&] { y = batch_norm(x, w.to(kGpu), {}, mean.to(kGpu), var.to(kGpu), false).y; });
    CHECK(same_numbers(y, batch_norm(x.to(Device::cpu()), w, {}, mean, var, false).y));
    return any_has(names, "MapPlanes");
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    CAPTURE(to_string(dtype));
    for (const Shape& sizes : {Shape{2, 3, 14, 14}, Shape{2, 4, 7, 7}, Shape{4, 2, 9}, Shape{8, 1, 3, 3}})
      CHECK(eval(drawn(sizes, 1, dtype).to(kGpu)));
    CHECK_FALSE(eval(drawn({2, 3, 4, 4}, 1, dtype).to(kGpu)));  // whole runs
    CHECK_FALSE(eval(drawn({4, 2, 7}, 1, dtype).to(kGpu)));     // three planes in a run
    CHECK_FALSE(eval(drawn({1, 3, 7, 7}, 1, dtype).to(kGpu)));  // 147 elements
    CHECK_FALSE(eval(channels_last(drawn({2, 4, 7, 7}, 1, dtype)).to(kGpu)));
    const Tensor longer = drawn({3 * 4 * 49}, 1, dtype).to(kGpu);
    CHECK_FALSE(eval(longer.narrow(0, 1, 2 * 4 * 49).view({2, 4, 7, 7})));  // not aligned
  }
}

TEST_CASE("what stores of rows lose is counted") {
  if (!have_gpu()) return;
  const Tensor x = mul(drawn({6, 40}, 1), 6).to(DType::f16);
  const Tensor there = x.to(kGpu);
  CastCounts cpu, gpu;
  {
    const CountScope scope(&cpu);
    softmax(x, 1);
  }
  {
    const CountScope scope(&gpu);
    softmax(there, 1);
  }
  CHECK(cpu.elements == 240);
  CHECK(cpu.subnormal > 0);
  CHECK(gpu.elements == cpu.elements);
  CHECK(gpu.subnormal == cpu.subnormal);
  CHECK(gpu.underflow == cpu.underflow);
}

TEST_CASE("running statistics move in one launch, with the CPU's bits") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const DType of_batch : {DType::f32, DType::f64}) {
      for (const std::int64_t channels : {0, 1, 300}) {
        for (const bool counted : {false, true}) {
          CAPTURE(to_string(dtype));
          CAPTURE(to_string(of_batch));
          CAPTURE(channels);
          const Shape s{channels};
          const std::vector<Tensor> given = {drawn(s, 1, dtype), square(drawn(s, 2)).to(dtype),
                                             full({}, 5, {.dtype = DType::i64}), drawn(s, 3, of_batch) * 1e-5,
                                             clamp(drawn(s, 4, of_batch) + 3, 0.1, 31.7)};
          std::vector<Tensor> there, here;
          for (const Tensor& t : given) {
            there.push_back(t.to(kGpu));
            here.push_back(t.clone());
          }
          CastCounts on_gpu, on_cpu;
          const auto move = [](const std::vector<Tensor>& t) {
            batch_norm_update_(t[0], t[1], t[2], t[3], t[4], {.momentum = 0.1, .eps = 1e-3, .count = 64});
          };
          const auto launches = kernels_of([&] {
            const CountScope scope(counted ? &on_gpu : nullptr);
            move(there);
          });
          if (!counted) CHECK(launches.size() == 1);
          {
            const CountScope scope(counted ? &on_cpu : nullptr);
            move(here);
          }
          for (std::size_t i = 0; i < 5; ++i) CHECK(same_numbers(there[i], here[i]));
          CHECK(here[2].item() == 6);
          CHECK(there[2].version() == 1);
          CHECK(on_gpu.elements == on_cpu.elements);
          CHECK(on_gpu.subnormal == on_cpu.subnormal);
          if (counted) CHECK(on_cpu.elements == (size_of(dtype) == 2 ? 2 * static_cast<std::uint64_t>(channels) : 0));
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradual
