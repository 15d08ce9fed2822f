// Ops that end in relu or gelu, and others of two in one, against the ops apart: the same bits, forward and backward.
#include <doctest/doctest.h>
#include <gradual/autograd/autograd.h>
#include <gradual/core/formats/accumulator.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/formats/convert.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/ops/dispatch.h>
#include <gradual/core/ops/fusions.h>
#include <gradual/core/ops/ops.h>

#include <cmath>
#include <functional>
#include <vector>

#include "../../support/tensors.h"
#include "support/cpu_backends.h"

using namespace gradual;
using gradual::testing::same_bits;

namespace {

using Tensors = std::vector<Tensor>;
using Op = std::function<Tensor(const Tensors&)>;

Tensor random(const Shape& sizes, DType dtype, std::uint64_t seed, double scale = 1) {
  Generator g(seed);
  return (randn(sizes, {.dtype = DType::f64}, g) * scale).to(dtype);
}

// The result, the gradients of all defined inputs, and theirs by way of the gradient's gradient.
Tensors all_of(const Op& op, const Tensors& given) {
  Tensors inputs;
  Tensors leaves;
  for (const Tensor& t : given) {
    inputs.push_back(t.defined() ? t.clone() : t);
    if (t.defined()) leaves.push_back(inputs.back().set_requires_grad());
  }
  const Tensor y = op(inputs);
  const Tensor dy = random(y.sizes(), y.dtype(), 9);
  Tensors out{y.detach()};
  for (const Tensor& g : autograd::grad({y}, leaves, {dy}, {.retain_graph = true})) out.push_back(g);
  Tensors first = autograd::grad({y}, leaves, {dy}, {.create_graph = true});
  Tensors ends, weights;
  for (const Tensor& g : first) {
    out.push_back(g.detach());
    if (!g.requires_grad()) continue;
    ends.push_back(g);
    weights.push_back(random(g.sizes(), g.dtype(), 10));
  }
  if (ends.empty()) return out;
  for (const Tensor& g : autograd::grad(ends, leaves, weights, {.allow_unused = true}))
    if (g.defined()) out.push_back(g);
  return out;
}

void check_same(const Op& one, const Op& two, const Tensors& inputs) {
  const Tensors a = all_of(one, inputs);
  const Tensors b = all_of(two, inputs);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a[i], b[i]));
  }
}

Tensor fused_linear(const Tensors& t) { return linear_relu(t[0], t[1], t[2]); }
Tensor two_of_linear(const Tensors& t) { return relu(linear(t[0], t[1], t[2])); }

}  // namespace

TEST_CASE("linear_relu is relu of linear, bit for bit, on each backend") {
  for (const CpuBackend backend : testing::cpu_backends()) {
    const CpuBackendScope scope(backend);
    CAPTURE(to_string(backend));
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      CAPTURE(to_string(dtype));
      // Products of 1e-4 end where f16 and then bf16 have no more numbers.
      for (const double scale : {1.0, 1e-4, 1e-19})
        for (const bool bias : {true, false}) {
          CAPTURE(scale);
          Tensor x = random({33, 20}, dtype, 1, scale);
          if (scale == 1) {
            x.select(0, 3).fill_(NAN);
            x.select(0, 4).fill_(INFINITY);
            x.select(0, 5).fill_(-0.0);
          }
          const Tensor b = bias ? random({17}, dtype, 3, scale * scale) : Tensor();
          check_same(fused_linear, two_of_linear, {x, random({17, 20}, dtype, 2, scale), b});
          check_same(fused_linear, two_of_linear, {random({20}, dtype, 4), random({5, 20}, dtype, 5), Tensor()});
        }
    }
    const Tensor x = random({3, 8, 40}, DType::f32, 1);
    const Tensor w = random({70, 40}, DType::f32, 2);
    check_same(fused_linear, two_of_linear, {x, w, random({70}, DType::f32, 3)});
    const Tensor x8 = x.to(DType::f8e4m3fn);
    const Tensor w8 = w.to(DType::f8e4m3fn);
    CHECK(same_bits(linear_relu(x8, w8), relu(linear(x8, w8))));
    const AccumulatorScope narrow(Accumulator{.format = format_of(DType::bf16)});
    CHECK(same_bits(linear_relu(x, w), relu(linear(x, w))));
  }
}

TEST_CASE("dropout_add is dropout and add, bit for bit, in every mix of dtypes and layouts") {
  constexpr DType kFloats[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  const auto one = [](const Tensors& t) {
    Generator g(4);
    return dropout_add(t[0], t[1], 0.3, g);
  };
  const auto two = [](const Tensors& t) {
    Generator g(4);
    return t[1] + dropout(t[0], 0.3, g);
  };
  for (const DType x : kFloats)
    for (const DType residual : kFloats) {
      CAPTURE(to_string(x));
      CAPTURE(to_string(residual));
      for (const Shape& sizes : {Shape{}, Shape{7}, Shape{3, 0}, Shape{37, 51}, Shape{300, 130}})
        check_same(one, two, {random(sizes, x, 1, 3), random(sizes, residual, 2, 3)});
      const Tensor a = random({6, 10, 4}, x, 1).permute({2, 0, 1});
      const Tensor b = random({4, 10, 6}, residual, 2).transpose(1, 2);
      for (const Tensors& in : {Tensors{a, b}, {a.contiguous(), b}, {a, b.contiguous()}}) {
        const Tensor y = one(in);
        const Tensor expected = two(in);
        CHECK(same_bits(y, expected));
        CHECK(y.strides() == expected.strides());
      }
      CastCounts apart, together;
      for (const bool fused : {false, true}) {
        const CountScope scope(fused ? &together : &apart);
        const Tensors in{random({900, 80}, DType::f32, 1, 1e-7).to(x),
                         random({900, 80}, DType::f32, 2, 1e-7).to(residual)};
        (fused ? one : two)(in);
      }
      CHECK(apart == together);
    }
}

TEST_CASE("dropout_add writes over what its caller is done with") {
  Generator g(4);
  Generator again(4);
  const Tensor residual = random({20, 30}, DType::f32, 1);
  const Tensor x = random({20, 30}, DType::f32, 2);
  const Tensor expected = dropout_add(x, residual, 0.5, g);
  Tensor given = x.clone();
  const void* const memory = given.raw();
  const Tensor y = dropout_add(std::move(given), residual, 0.5, again);
  CHECK(y.raw() == memory);
  CHECK(same_bits(y, expected));
}

TEST_CASE("linear_gelu is gelu of linear, bit for bit, on each backend") {
  for (const CpuBackend backend : testing::cpu_backends()) {
    const CpuBackendScope scope(backend);
    CAPTURE(to_string(backend));
    for (const Gelu form : {Gelu::exact, Gelu::tanh})
      for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
        for (const bool bias : {true, false}) {
          CAPTURE(to_string(dtype));
          const auto one = [form](const Tensors& t) { return linear_gelu(t[0], t[1], t[2], form); };
          const auto two = [form](const Tensors& t) { return gelu(linear(t[0], t[1], t[2]), form); };
          Tensor x = random({33, 20}, dtype, 1);
          x.select(0, 3).fill_(NAN);
          x.select(0, 4).fill_(INFINITY);
          x.select(0, 5).fill_(-0.0);
          check_same(one, two, {x, random({17, 20}, dtype, 2), bias ? random({17}, dtype, 3) : Tensor()});
          check_same(one, two, {random({2, 3, 8}, dtype, 1), random({5, 8}, dtype, 2), Tensor()});
          check_same(one, two, {random({20}, dtype, 4), random({5, 20}, dtype, 5), Tensor()});
        }
    const Tensor x = random({3, 40}, DType::f32, 1);
    const Tensor w = random({70, 40}, DType::f32, 2);
    const Tensor x8 = x.to(DType::f8e4m3fn);
    const Tensor w8 = w.to(DType::f8e4m3fn);
    CHECK(same_bits(linear_gelu(x8, w8), gelu(linear(x8, w8))));
    const AccumulatorScope narrow(Accumulator{.format = format_of(DType::bf16)});
    CHECK(same_bits(linear_gelu(x, w), gelu(linear(x, w))));
  }
}

TEST_CASE("the gradients of weight and bias in one op are those of two, bit for bit, on each backend") {
  for (const CpuBackend backend : testing::cpu_backends()) {
    const CpuBackendScope scope(backend);
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const bool turned : {true, false}) {
        CAPTURE(to_string(backend));
        CAPTURE(to_string(dtype));
        const Tensor dy = turned ? random({17, 33}, dtype, 1).t() : random({33, 17}, dtype, 1);
        const Tensor x = random({33, 20}, dtype, 2);
        const Outputs both = call_row(OpId::linear_backward_weight, {}, dy, x);
        CHECK(same_bits(both[0], matmul(dy.t(), x)));
        CHECK(same_bits(both[1], sum(dy, {0})));
      }
  }
}

TEST_CASE("linear_relu rounds once") {
  const Tensor x = random({33, 20}, DType::f16, 1);
  const Tensor w = random({17, 20}, DType::f16, 2);
  CastCounts fused, apart;
  {
    const CountScope scope(&fused);
    linear_relu(x, w);
  }
  {
    const CountScope scope(&apart);
    linear(x, w);
  }
  CHECK(fused.elements == 33 * 17);
  CHECK(fused.elements == apart.elements);
}

TEST_CASE("batch_norm with relu is relu of batch_norm, bit for bit") {
  for (const bool training : {true, false})
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const Shape& sizes : {Shape{6, 5}, Shape{3, 4, 7}, Shape{2, 16, 9, 11}})
        for (const bool last : {false, true}) {
          if (last && sizes.size() != 4) continue;
          CAPTURE(training);
          CAPTURE(to_string(dtype));
          CAPTURE(to_string(sizes));
          const Shape c{sizes[1]};
          const Tensor mean = random(c, DType::f32, 5, 0.1);
          const Tensor var = square(random(c, DType::f32, 6)) + 0.1;
          const auto norm = [&](const Tensors& t, bool with_relu) {
            const Tensor x = last ? t[0].permute({0, 3, 1, 2}) : t[0];
            return batch_norm(x, t[1], t[2], mean, var, training, 1e-5, with_relu).y;
          };
          const auto one = [&](const Tensors& t) { return norm(t, true); };
          const auto two = [&](const Tensors& t) { return relu(norm(t, false)); };
          const DType statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
          Shape given = sizes;
          if (last) given = {sizes[0], sizes[2], sizes[3], sizes[1]};
          const Tensor x = random(given, dtype, 1);
          check_same(one, two, {x, random(c, statistics, 2), random(c, statistics, 3)});
          check_same(one, two, {x, Tensor(), Tensor()});
          // Results between the numbers of f16 around 0, where the sign of what is rounded away stays.
          check_same(one, two, {x, random(c, statistics, 2, 1e-7), random(c, statistics, 3, 1e-8)});
          const Tensor odd = x.clone();
          odd.select(1, 0).fill_(NAN);
          check_same(one, two, {odd, random(c, statistics, 2), random(c, statistics, 3)});
        }
}

TEST_CASE("run_parts gives the outputs of each fusion of the table, bit for bit") {
  const Tensor x = random({9, 12}, DType::f32, 1);
  const Tensor weight = random({7, 12}, DType::f32, 2);
  const Tensor bias = random({7}, DType::f32, 3);
  const Tensor scale = random({12}, DType::f32, 4);
  const Tensor shift = random({12}, DType::f32, 5);
  const Tensor none;
  for (const Fusion& f : fusions()) {
    CAPTURE(to_string(f.whole));
    CAPTURE(to_string(f.second));
    CHECK(find_fusion(f.first, f.second) == &f);
    const bool norm = f.first == OpId::batch_norm;
    const bool drops = f.first == OpId::dropout;
    const Attrs first = norm ? Attrs(NormAttrs{}) : drops ? Attrs(DropoutAttrs{0.3, {7, 0}}) : Attrs();
    const Attrs attrs = f.whole_attrs(first, f.second == OpId::gelu ? Attrs(Gelu::tanh) : Attrs());
    const std::vector<const Tensor*> inputs = norm    ? std::vector{&x, &scale, &shift, &none, &none}
                                              : drops ? std::vector{&x, &x}
                                                      : std::vector{&x, &weight, &bias};
    const OpCall call{f.whole, TensorRefs(inputs.data(), static_cast<int>(inputs.size())), &attrs,
                      SourceLocation::current()};
    CHECK(fusion_of(call) == &f);
    const auto run = [](const OpCall& c) { return dispatch(c.op, c.inputs, *c.attrs, c.where); };
    const Outputs whole = run(call);
    int parts = 0;
    const Outputs apart = run_parts(f, call, [&](const OpCall& part) {
      CHECK(part.op == (parts == 0 ? f.first : f.second));
      ++parts;
      CHECK(fusion_of(part) == nullptr);
      return run(part);
    });
    CHECK(parts == 2);
    for (int i = 0; i < op_info(f.whole).outputs; ++i) CHECK(same_bits(whole[i], apart[i]));
  }
  CHECK(fusion_of(OpId::linear) == nullptr);
  CHECK(find_fusion(OpId::linear, OpId::silu) == nullptr);
}
