#include "../../amp/convert_model.h"

#include <doctest/doctest.h>

#include "../../amp/autocast.h"
#include "../../nn/linear.h"
#include "../../nn/norm.h"
#include "../../nn/sequential.h"
#include "../../optim/sgd.h"
#include "support.h"

using namespace gradual;

namespace {

struct Net : nn::Module {
  nn::Linear& fc1 = register_module("fc1", nn::Linear(8, 6));
  nn::BatchNorm1d& bn = register_module("bn", nn::BatchNorm1d(6));
  nn::LayerNorm& ln = register_module("ln", nn::LayerNorm(6));
  nn::RMSNorm& rms = register_module("rms", nn::RMSNorm(6));
  nn::Linear& fc2 = register_module("fc2", nn::Linear(6, 3));
  Tensor forward(const Tensor& x) override { return fc2(rms(ln(bn(fc1(x))))); }
};

struct Two : nn::Module {
  nn::Linear& a = register_module("a", nn::Linear(4, 4));
  nn::Linear& b = register_module("b", nn::Linear(4, 4));
  DType a_dtype{};
  DType b_dtype{};
  Tensor forward(const Tensor& x) override {
    const Tensor y = a(x);
    const Tensor z = b(x);
    a_dtype = y.dtype();
    b_dtype = z.dtype();
    return y + z;
  }
};

}  // namespace

TEST_CASE("to_half leaves norm layers in f32, and they take half inputs") {
  Net net;
  const Tensor weight = net.fc1.weight;
  amp::to_half(net);
  CHECK(net.fc1.weight.is_same(weight));  // the handle that an optimizer holds
  CHECK(weight.requires_grad());
  for (const auto& [name, t] : net.named_parameters()) {
    const auto& name_shown = name;
    CAPTURE(name_shown);
    CHECK(t.dtype() == (name.starts_with("fc") ? DType::f16 : DType::f32));
  }
  CHECK(net.bn.running_mean.dtype() == DType::f32);
  const Tensor y = net(random({5, 8}, 1, DType::f16));
  CHECK(y.dtype() == DType::f16);
  sum(y).backward();
  CHECK(net.fc1.weight.grad().dtype() == DType::f16);
  CHECK(net.ln.weight.grad().dtype() == DType::f32);
}

TEST_CASE("to_pure converts everything floating") {
  Net net;
  amp::to_pure(net, DType::bf16);
  for (const auto& [name, t] : net.named_parameters()) CHECK(t.dtype() == DType::bf16);
  CHECK(net.bn.running_mean.dtype() == DType::bf16);
  CHECK(net.bn.num_batches_tracked.dtype() == DType::i64);
  CHECK(net(random({5, 8}, 1, DType::bf16)).dtype() == DType::bf16);
  CHECK(message_of([&] { amp::to_half(net, DType::f32); }) ==
        "to_half: converts to f16 or bf16, not to f32; use Module::to for other dtypes");
}

TEST_CASE("master_state_dict is the model in FP32 as the masters have it") {
  Net net;
  const Tensor before = net.fc1.weight.detach().clone();
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .precision = {.update = optim::LowPrecisionUpdate::masters}});
  amp::to_half(net, DType::bf16);
  const StateDict wide = amp::master_state_dict(net, sgd);
  CHECK(same_bits(wide.tensor("fc1.weight"), before));
  CHECK(wide.size() == net.state_dict().size());
  for (const auto& [name, value] : wide) {
    const auto& name_shown = name;
    CAPTURE(name_shown);
    CHECK(std::get<Tensor>(value).dtype() == (name == "bn.num_batches_tracked" ? DType::i64 : DType::f32));
  }
  optim::SGD plain(net.parameters());
  CHECK(same_bits(amp::master_state_dict(net, plain).tensor("fc1.weight"), before.to(DType::bf16).to(DType::f32)));
}

TEST_CASE("an override rules its module's calls inside a region, and none outside") {
  Two net;
  const Tensor x = random({2, 4}, 1);
  amp::set_override(net.a, {.enabled = false});
  amp::set_override(net.b, {.dtype = DType::bf16});
  net(x);
  CHECK(net.a_dtype == DType::f32);
  CHECK(net.b_dtype == DType::f32);
  {
    const amp::Autocast scope({.dtype = DType::f16});
    CHECK(net(x).dtype() == DType::f32);  // f32 + bf16
    CHECK(net.a_dtype == DType::f32);
    CHECK(net.b_dtype == DType::bf16);
    CHECK(amp::autocast_dtype() == DType::f16);
    CHECK_THROWS_AS(net.a(random({2, 5}, 1)), Error);
    CHECK(amp::autocast_dtype() == DType::f16);  // restored on exceptions
    amp::set_override(net.a, {});
    amp::PolicyTable table;
    table.set("linear", amp::CastPolicy::fp32());
    amp::set_override(net.b, {.table = table});
    net(x);
    CHECK(net.a_dtype == DType::f16);
    CHECK(net.b_dtype == DType::f32);
  }
  amp::set_override(net, {.enabled = false});  // the whole, but a child has the last word
  amp::set_override(net.b, {.enabled = true});
  const amp::Autocast scope({.dtype = DType::f16});
  net(x);
  CHECK(net.a_dtype == DType::f32);
  CHECK(net.b_dtype == DType::f16);
  CHECK(message_of([&] { amp::set_override(net, {.dtype = DType::f64}); }) ==
        "set_override on Two: the dtype is f16 or bf16, not f64; {.enabled = false} computes in f32");
}
