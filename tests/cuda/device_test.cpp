// Tensors on a GPU: copies, views, memory by category, errors.
#include <doctest/doctest.h>

#include <thread>

#include <gradual/core/observe/profile.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/tensor/memory.h>
#include <gradual/cuda/cuda.h>
#include <gradual/gradual.h>
#include "../../cuda/runtime/thread_resources.h"
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

TEST_CASE("without a GPU the error names what is missing") {
  if (cuda::available()) return;
  CHECK(cuda::why_not().size() > 20);
  try {
    zeros({2}, {.device = kGpu});
    FAIL("no error");
  } catch (const Error& e) { CHECK(std::string(e.what()).find("no device cuda:0: ") != std::string::npos); }
}

TEST_CASE("a thread inherits what an earlier one left, and shares it with none") {
  struct Kept {
    int number = 0;
  };
  std::thread([] { cuda::inherited<Kept>().number = 7; }).join();
  std::thread([] {
    CHECK(cuda::inherited<Kept>().number == 7);
    std::thread([] { CHECK(cuda::inherited<Kept>().number == 0); }).join();
  }).join();
}

TEST_CASE("numbers go there and come back, in every dtype and layout") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e5m2, DType::i64, DType::bool_}) {
    const Tensor x = arange(0, 24, 1, {.dtype = DType::f32}).to(dtype).reshape({2, 3, 4});
    for (const Tensor& t :
         {x, x.permute({2, 0, 1}), slice(x, 2, Slice{.start = 1, .stop = {}, .step = 2}), x.select(1, 2), x[0][0][0]}) {
      const Tensor there = t.to(kGpu);
      CHECK(there.device() == kGpu);
      CHECK(there.sizes() == t.sizes());
      CHECK(there.dtype() == dtype);
      CHECK(there.to_vector<double>() == t.to_vector<double>());
      CHECK(there.to(Device::cpu()).to_vector<double>() == t.to_vector<double>());
    }
    const Tensor there = x.to(kGpu);
    CHECK(there.permute({2, 0, 1}).to(Device::cpu()).to_vector<double>() == x.permute({2, 0, 1}).to_vector<double>());
    CHECK(slice(there, 2, Slice{.start = 1, .stop = {}, .step = 2}).to_vector<double>() ==
          slice(x, 2, Slice{.start = 1, .stop = {}, .step = 2}).to_vector<double>());
  }
  CHECK(zeros({0, 3}).to(kGpu).to(Device::cpu()).sizes() == Shape{0, 3});
}

TEST_CASE("creation on a GPU gives the numbers of the CPU") {
  if (!have_gpu()) return;
  const TensorOptions there{.device = kGpu};
  CHECK(full({3}, 2.5, there).to_vector<double>() == std::vector<double>{2.5, 2.5, 2.5});
  CHECK(full({2}, 7, {.dtype = DType::i64, .device = kGpu}).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{7, 7});
  CHECK(arange(0, 5, 1, {.device = kGpu}).to_vector<double>() == arange(0, 5).to_vector<double>());
  CHECK(eye(3, there).to_vector<double>() == eye(3).to_vector<double>());
  Generator a(3);
  Generator b(3);
  CHECK(randn({50}, there, a).to_vector<double>() == randn({50}, {}, b).to_vector<double>());
  CHECK(randint(0, 9, {20}, {.dtype = DType::i64, .device = kGpu}, a).to_vector<double>() ==
        randint(0, 9, {20}, {.dtype = DType::i64}, b).to_vector<double>());
  Tensor x = zeros({4}, there);
  x.uniform_(0, 1, a);
  CHECK(x.to_vector<double>() == zeros({4}).uniform_(0, 1, b).to_vector<double>());
  CHECK(x.device() == kGpu);
  CHECK(randn({2}, {.device = kGpu, .requires_grad = true}, a).requires_grad());
}

TEST_CASE("copy_ takes a source on another device") {
  if (!have_gpu()) return;
  const Tensor x = arange(0, 6, 1, {.dtype = DType::f32}).reshape({2, 3});
  const Tensor there = zeros({2, 3}, {.dtype = DType::f16, .device = kGpu});
  there.copy_(x);
  CHECK(there.to_vector<double>() == x.to_vector<double>());
  const Tensor back = zeros({3, 2});
  back.transpose(0, 1).copy_(there);
  CHECK(back.to_vector<double>() == x.transpose(0, 1).to_vector<double>());
}

TEST_CASE("OwnStream starts after earlier work of the device, and is complete at its end") {
  if (!have_gpu()) return;
  Tensor x = full({1 << 16}, 1, {.device = kGpu});
  for (int i = 0; i < 20; ++i) x = x * 2.0;
  Tensor y;
  std::thread([&] {
    const device::OwnStream stream(kGpu);
    y = x + 1.0;
  }).join();
  y = y * 2.0;
  CHECK(y.max().item() == 2097154);
  CHECK(y.min().item() == 2097154);
}

TEST_CASE("operands on two devices are an error that names both") {
  if (!have_gpu()) return;
  CHECK_THROWS_WITH_AS(add(ones({2}), ones({2}, {.device = kGpu})),
                       doctest::Contains("inputs on cpu and cuda:0; move them to one device"), Error);
  CHECK_THROWS_WITH_AS(static_cast<void>(ones({2}, {.device = kGpu}).data<float>()),
                       doctest::Contains("the tensor is on cuda:0; copy it with to(Device::cpu())"), Error);
  CHECK_THROWS_WITH_AS(zeros({2}, {.device = Device::cuda(9)}), doctest::Contains("no device cuda:9"), Error);
}

TEST_CASE("bytes are counted for each device by category") {
  if (!have_gpu()) return;
  const std::int64_t cpu = memory_stats().total.current;
  const MemoryStats before = memory_stats(kGpu);
  {
    const CategoryScope scope(Category::optimizer);
    const Tensor x = zeros({1000}, {.device = kGpu});
    const MemoryStats now = memory_stats(kGpu);
    CHECK(now[Category::optimizer].current - before[Category::optimizer].current == 4000);
    CHECK(now.total.current - before.total.current == 4000);
    CHECK(memory_stats().total.current == cpu);
  }
  CHECK(memory_stats(kGpu).total.current == before.total.current);
  CHECK(memory_stats(kGpu)[Category::optimizer].peak >= 4000);
  CHECK(memory_summary(kGpu).find("memory on cuda:0") != std::string::npos);
}

TEST_CASE("out of memory: the error names the bytes requested and in use") {
  if (!have_gpu()) return;
  CHECK_THROWS_WITH_AS(zeros({std::int64_t{1} << 44}, {.device = kGpu}),
                       doctest::Contains("out of memory on cuda:0: asked for 70368744177664 bytes"), Error);
  CHECK(ones({2}, {.device = kGpu}).to_vector<double>() == std::vector<double>{1, 1});  // it goes on
}

TEST_CASE("gradients flow between devices") {
  if (!have_gpu()) return;
  const Tensor x = from_data(std::vector<double>{1, 2, 3}, {3}, {.requires_grad = true});
  const Tensor y = (x.to(kGpu) * 2).to(Device::cpu()) * x;
  y.sum().backward();
  CHECK(x.grad().device().is_cpu());
  CHECK(x.grad().to_vector<double>() == std::vector<double>{4, 8, 12});
  const Tensor w = ones({2}, {.device = kGpu, .requires_grad = true});
  (w * w).to(Device::cpu()).sum().backward();
  CHECK(w.grad().device() == kGpu);
  CHECK(w.grad().to_vector<double>() == std::vector<double>{2, 2});
}

TEST_CASE("the profile counts a GPU's launches and names its kernels") {
  if (!have_gpu()) return;
  const Tensor x = ones({1000}, {.device = kGpu});
  Profile profile;
  {
    const ObserverScope scope(profile);
    x.exp();
  }
  const Profile::Entry e = profile.by_op().at(0);
  CHECK(e.name == "exp");
  CHECK(e.launches == 1);
  REQUIRE(e.kernels.size() == 1);
  CHECK(e.kernels[0].find("Exp") != std::string::npos);
  CHECK(profile.table().find("\nkernels\nexp (forward)") != std::string::npos);
}

}  // namespace
}  // namespace gradual
