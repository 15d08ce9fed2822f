// The single ops by libtorch; gradual_ops.cpp says what each is.
#include <torch/torch.h>

#include <functional>

#include "libtorch_worker.h"

namespace compare {
namespace {

using torch::Tensor;
using Sizes = std::vector<std::int64_t>;
using Step = std::function<void()>;

struct Op : Job {
  explicit Op(Step s) : run(std::move(s)) {}
  void step() override { run(); }
  Step run;
};

at::ScalarType dtype_of_spec(const Json& spec) {
  const std::string name = spec.at("dtype");
  if (name == "f32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "f16") return at::kHalf;
  throw std::invalid_argument("no dtype '" + name + "' here; there are f32, bf16 and f16");
}

template <class F> Step forward_only(F f) {
  return [f = std::move(f)] {
    const torch::NoGradGuard off;
    f();
  };
}

Tensor normal(const Sizes& sizes, at::ScalarType dtype) { return torch::randn(sizes).to(dtype); }

Step matmul_step(const Sizes& s, at::ScalarType dtype) {
  return forward_only([a = normal({s[0], s[1]}, dtype), b = normal({s[1], s[2]}, dtype)] { torch::matmul(a, b); });
}
Step linear_step(const Sizes& s, at::ScalarType dtype) {
  return forward_only([x = normal({s[0], s[1]}, dtype), w = normal({s[2], s[1]}, dtype), b = normal({s[2]}, dtype)] {
    torch::nn::functional::linear(x, w, b);
  });
}
Step conv2d_step(const Sizes& s, at::ScalarType dtype) {
  const Tensor x = normal({s[0], s[1], s[3], s[3]}, dtype).requires_grad_();
  const Tensor w = normal({s[2], s[1], 3, 3}, dtype).requires_grad_();
  const Tensor g = normal({s[0], s[2], s[3], s[3]}, dtype);
  return [=] {
    x.mutable_grad().reset();
    w.mutable_grad().reset();
    torch::conv2d(x, w, {}, 1, 1).backward(g);
  };
}
Step cast_step(const Sizes& s, at::ScalarType dtype) {
  return forward_only([x = normal({s[0]}, at::kFloat), y = torch::empty({s[0]}, dtype)] { y.copy_(x); });
}
Step softmax_step(const Sizes& s, at::ScalarType dtype) {
  return forward_only([x = normal({s[0], s[1]}, dtype)] { torch::softmax(x, -1); });
}
Step layer_norm_step(const Sizes& s, at::ScalarType dtype) {
  return forward_only([x = normal({s[0], s[1]}, dtype), w = normal({s[1]}, at::kFloat), b = normal({s[1]}, at::kFloat),
                       c = s[1]] { torch::layer_norm(x, {c}, w, b); });
}
// torch has no masters: the step is AdamW on f32 copies, with the conversions before and after it.
Step adamw_step(const Sizes& s, at::ScalarType dtype) {
  std::vector<Tensor> params, gradients, masters;
  for (std::int64_t i = 0; i < s[0]; ++i) {
    params.push_back(normal({s[1], s[2]}, dtype));
    gradients.push_back(normal({s[1], s[2]}, dtype));
    masters.push_back(params.back().to(at::kFloat).requires_grad_());
    masters.back().mutable_grad() = torch::empty({s[1], s[2]});
  }
  const auto optimizer = std::make_shared<torch::optim::AdamW>(masters, torch::optim::AdamWOptions(1e-3));
  return [=] {
    const torch::NoGradGuard off;
    for (std::size_t i = 0; i < masters.size(); ++i) masters[i].mutable_grad().copy_(gradients[i]);
    optimizer->step();
    for (std::size_t i = 0; i < masters.size(); ++i) params[i].copy_(masters[i]);
  };
}

constexpr std::pair<const char*, Step (*)(const Sizes&, at::ScalarType)> kOps[] = {
    {"matmul", matmul_step},   {"linear", linear_step},         {"conv2d", conv2d_step}, {"cast", cast_step},
    {"softmax", softmax_step}, {"layer_norm", layer_norm_step}, {"adamw", adamw_step}};

}  // namespace

std::unique_ptr<Job> libtorch_op(const Json& spec) {
  for (const auto& [name, make] : kOps)
    if (spec.at("op") == name) return std::make_unique<Op>(make(spec.at("sizes"), dtype_of_spec(spec)));
  throw std::invalid_argument("no op '" + spec.at("op").get<std::string>() + "' here");
}

}  // namespace compare
