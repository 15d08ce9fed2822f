// linear with an activation, and its gradients, on a GPU: what becomes of NaN, counts, accumulators and second
// derivatives.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gradual/autograd/autograd.h>
#include <gradual/core/formats/accumulator.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/cuda/cuda.h>
#include <gradual/gradual.h>
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

// Whether the numbers are those of `cpu` but for `ulps` steps of their dtype and of the largest.
bool near(const Tensor& gpu, const Tensor& cpu, double ulps) {
  if (gpu.dtype() != cpu.dtype() || gpu.sizes() != cpu.sizes()) return false;
  const std::vector<double> x = numbers(gpu);
  const std::vector<double> y = numbers(cpu);
  double most = 0;
  for (const double v : y)
    if (std::isfinite(v)) most = std::max(most, std::fabs(v));
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) && std::isnan(y[i])) continue;
    if (x[i] == y[i]) continue;
    if (!(std::fabs(x[i] - y[i]) <= ulps * float_info(cpu.dtype()).epsilon * most)) return false;
  }
  return true;
}

struct Layer {
  Tensor x, w, b;
  Layer(DType dtype, Device device) : x(drawn({24, 32}, 1)), w(drawn({16, 32}, 2) * 0.2), b(drawn({16}, 3)) {
    for (Tensor* t : {&x, &w, &b}) *t = t->to(dtype).to(device).detach().set_requires_grad();
  }
};

TEST_CASE("linear_gelu and its gradients, once and twice, are the CPU's") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const Gelu form : {Gelu::exact, Gelu::tanh}) {
      CAPTURE(to_string(dtype));
      std::vector<std::vector<Tensor>> seen;
      for (const Device device : {Device::cpu(), kGpu}) {
        Layer l(dtype, device);
        const Tensor y = linear_gelu(l.x, l.w, l.b, form);
        const std::vector<Tensor> leaves{l.x, l.w, l.b};
        std::vector<Tensor> all{y.detach()};
        for (const Tensor& g : autograd::grad({y}, leaves, {ones_like(y)}, {.retain_graph = true})) all.push_back(g);
        std::vector<Tensor> first = autograd::grad({y}, leaves, {ones_like(y)}, {.create_graph = true});
        std::vector<Tensor> weights;
        for (const Tensor& g : first) weights.push_back(ones_like(g) * 0.1);
        for (const Tensor& g : autograd::grad(first, leaves, weights)) all.push_back(g);
        seen.push_back(all);
      }
      for (std::size_t i = 0; i < seen[0].size(); ++i) {
        CAPTURE(i);
        CHECK(near(seen[1][i], seen[0][i], 32));
      }
    }
}

TEST_CASE("NaN and infinities pass through linear_gelu") {
  if (!have_gpu()) return;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor x = from_data(std::vector<double>{1, kNan, kInf, -3}, {4, 1}, {.dtype = dtype});
    const Tensor y = linear_gelu(x.to(kGpu), ones({16, 1}, {.dtype = dtype}).to(kGpu), {}, Gelu::tanh);
    const std::vector<double> got = numbers(y);
    for (std::size_t j = 0; j < 16; ++j) {
      CHECK(std::isnan(got[16 + j]));
      CHECK(got[32 + j] == kInf);
    }
  }
}

TEST_CASE("an accumulator and counts go through linear_gelu and the gradients of linear") {
  if (!have_gpu()) return;
  const auto all = [](Device device) {
    Layer l(DType::f16, device);
    const Tensor y = linear_gelu(l.x, l.w, l.b, Gelu::tanh);
    std::vector<Tensor> out{y.detach()};
    for (const Tensor& g : autograd::grad({y}, {l.x, l.w, l.b}, {ones_like(y)})) out.push_back(g);
    return out;
  };
  {
    const AccumulatorScope scope(accumulator("fp16-acc"));
    const std::vector<Tensor> here = all(Device::cpu());
    const std::vector<Tensor> there = all(kGpu);
    CHECK(near(there[0], here[0], 1));
    CHECK(near(there[2], here[2], 2));
  }
  const auto counted = [](Device device) {
    Layer l(DType::f16, device);
    const Tensor x = l.x.detach() * 300;
    const Tensor w = l.w.detach() * 300;
    CastCounts counts;
    const CountScope scope(&counts);
    linear_gelu(x, w, {}, Gelu::tanh);
    return counts;
  };
  const CastCounts here = counted(Device::cpu());
  const CastCounts there = counted(kGpu);
  CHECK(there.overflow > 0);
  CHECK(there.elements == here.elements);
  CHECK(there.overflow == here.overflow);
}

TEST_CASE("the gradients of weight and bias in one op are the CPU's, wherever the rows lie") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const bool turned : {false, true})
      for (const std::int64_t rows : {1, 40, 700}) {
        CAPTURE(to_string(dtype));
        const Tensor dy = turned ? drawn({24, rows}, 1, dtype).t() : drawn({rows, 24}, 1, dtype);
        const Tensor x = drawn({rows, 16}, 2, dtype);
        const Tensor gdy = dy.to(kGpu);
        const Tensor gx = x.to(kGpu);
        const Outputs here = call_row(OpId::linear_backward_weight, {}, dy, x);
        for (int i = 0; i < 3; ++i) {  // looked at, then known
          const Outputs there = call_row(OpId::linear_backward_weight, {}, gdy, gx);
          CHECK(near(there[0], here[0], 8));
          CHECK(near(there[1], here[1], 8));
        }
      }
}

TEST_CASE("gradients of linear give the same bits twice") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Layer l(dtype, kGpu);
    const auto gradients = [&] {
      const Tensor y = linear_gelu(l.x, l.w, l.b, Gelu::tanh);
      return autograd::grad({y}, {l.x, l.w, l.b}, {ones_like(y)});
    };
    gradients();  // looks at what the library does
    const std::vector<Tensor> first = gradients();
    const std::vector<Tensor> second = gradients();
    for (std::size_t i = 0; i < 3; ++i) CHECK(same_numbers(first[i], second[i]));
  }
}

}  // namespace
}  // namespace gradual
