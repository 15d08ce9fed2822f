// The single ops by this library.
#include <gradual/autograd/grad_mode.h>
#include <gradual/core/ops/ops.h>
#include <gradual/optim/adam.h>

#include <functional>
#include <utility>

#include "gradual_worker.h"

namespace compare {
namespace {

using namespace gradual;

using Step = std::function<void()>;

struct Op : Job {
  explicit Op(Step s) : run(std::move(s)) {}
  void step() override { run(); }
  Step run;
};

DType dtype_of_spec(const Json& spec) {
  const std::string name = spec.at("dtype");
  if (name == "f32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  if (name == "f16") return DType::f16;
  throw std::invalid_argument("no dtype '" + name + "' here; there are f32, bf16 and f16");
}

Tensor random(const Shape& sizes, DType dtype = DType::f32) { return randn(sizes).to(dtype).to(device()); }

// Runs without a tape; drops the result.
template <class F> Step forward_only(F f) {
  return [f = std::move(f)] {
    const NoGrad off;
    f();
  };
}

Step matmul_step(const std::vector<std::int64_t>& s, DType dtype) {  // [m, k] x [k, n]
  const Tensor a = random({s[0], s[1]}, dtype);
  const Tensor b = random({s[1], s[2]}, dtype);
  return forward_only([=] { matmul(a, b); });
}
Step linear_step(const std::vector<std::int64_t>& s, DType dtype) {  // [batch, in] to [batch, out], with bias
  const Tensor x = random({s[0], s[1]}, dtype);
  const Tensor w = random({s[2], s[1]}, dtype);
  const Tensor b = random({s[2]}, dtype);
  return forward_only([=] { linear(x, w, b); });
}
// Forward and both gradients: [batch, in, size, size] with `out` kernels of 3x3, padding 1.
Step conv2d_step(const std::vector<std::int64_t>& s, DType dtype) {
  const Tensor x = random({s[0], s[1], s[3], s[3]}, dtype).set_requires_grad();
  const Tensor w = random({s[2], s[1], 3, 3}, dtype).set_requires_grad();
  const Tensor g = random({s[0], s[2], s[3], s[3]}, dtype);
  return [=] {
    x.zero_grad();
    w.zero_grad();
    conv2d(x, w, {}, {.padding = 1}).backward(g);
  };
}
Step cast_step(const std::vector<std::int64_t>& s, DType dtype) {  // f32 into a tensor that is there
  const Tensor x = random({s[0]});
  const Tensor y = empty({s[0]}, {.dtype = dtype, .device = device()});
  return forward_only([=] { y.copy_(x); });
}
Step softmax_step(const std::vector<std::int64_t>& s, DType dtype) {
  const Tensor x = random({s[0], s[1]}, dtype);
  return forward_only([=] { softmax(x, -1); });
}
Step layer_norm_step(const std::vector<std::int64_t>& s, DType dtype) {
  const Tensor x = random({s[0], s[1]}, dtype);
  const Tensor w = random({s[1]});
  const Tensor b = random({s[1]});
  return forward_only([=] { layer_norm(x, 1, w, b); });
}
// Forward and all gradients of batch norm in training: [batch, channels, height, width], f32 parameters.
Step batch_norm_step(const std::vector<std::int64_t>& s, DType dtype) {
  const Tensor x = random({s[0], s[1], s[2], s[3]}, dtype).set_requires_grad();
  const Tensor w = random({s[1]}).set_requires_grad();
  const Tensor b = random({s[1]}).set_requires_grad();
  const Tensor g = random({s[0], s[1], s[2], s[3]}, dtype);
  return [=] {
    for (const Tensor& t : {x, w, b}) t.zero_grad();
    batch_norm(x, w, b, {}, {}, true, 1e-5).y.backward(g);
  };
}
// Forward and backward of windows of 2x2: [batch, channels, height, width].
Step avg_pool2d_step(const std::vector<std::int64_t>& s, DType dtype) {
  const Tensor x = random({s[0], s[1], s[2], s[3]}, dtype).set_requires_grad();
  const Tensor g = random({s[0], s[1], s[2] / 2, s[3] / 2}, dtype);
  return [=] {
    x.zero_grad();
    avg_pool2d(x, {.kernel = 2}).backward(g);
  };
}
// Forward and backward of causal attention: [batch, heads, length, head size].
Step attention_step(const std::vector<std::int64_t>& s, DType dtype) {
  const auto drawn = [&] { return random({s[0], s[1], s[2], s[3]}, dtype); };
  const Tensor q = drawn().set_requires_grad();
  const Tensor k = drawn().set_requires_grad();
  const Tensor v = drawn().set_requires_grad();
  const Tensor g = drawn();
  return [=] {
    for (const Tensor& t : {q, k, v}) t.zero_grad();
    scaled_dot_product_attention(q, k, v, {}, {.causal = true}).backward(g);
  };
}
// AdamW over [tensors, rows, columns] bf16 parameters with f32 masters and moments.
Step adamw_step(const std::vector<std::int64_t>& s, DType dtype) {
  std::vector<Tensor> params;
  for (std::int64_t i = 0; i < s[0]; ++i) {
    params.push_back(random({s[1], s[2]}, dtype).set_requires_grad());
    params.back().set_grad(random({s[1], s[2]}, dtype));
  }
  const auto optimizer = std::make_shared<optim::AdamW>(
      params, optim::AdamWOptions{.precision = {.update = optim::LowPrecisionUpdate::masters}});
  return [optimizer] { optimizer->step(); };
}

constexpr std::pair<const char*, Step (*)(const std::vector<std::int64_t>&, DType)> kOps[] = {
    {"matmul", matmul_step},      {"linear", linear_step},         {"conv2d", conv2d_step},
    {"cast", cast_step},          {"softmax", softmax_step},       {"layer_norm", layer_norm_step},
    {"adamw", adamw_step},        {"batch_norm", batch_norm_step}, {"avg_pool2d", avg_pool2d_step},
    {"attention", attention_step}};

}  // namespace

std::unique_ptr<Job> gradual_op(const Json& spec) {
  for (const auto& [name, make] : kOps)
    if (spec.at("op") == name) return std::make_unique<Op>(make(spec.at("sizes"), dtype_of_spec(spec)));
  throw std::invalid_argument("no op '" + spec.at("op").get<std::string>() + "' here");
}

}  // namespace compare
