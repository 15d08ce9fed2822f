// The models of examples/models: losses and gradients of PyTorch from equal weights (golden/make_models.py), and their
// layers.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "../../examples/models/resnet20.h"
#include "../../examples/models/row_reader.h"
#include "../../examples/models/unet.h"
#include "../../examples/models/vae.h"
#include "../../examples/models/vit.h"
#include "helpers.h"
#include "support/source_dir.h"

using namespace nn_test;

namespace {

// From -1 to 1: the fraction of (i + 1)(key + 1) times 2654435761 / 2^32.
Tensor numbers(const Shape& sizes, std::uint64_t key, DType dtype) {
  std::vector<double> v(static_cast<std::size_t>(numel(sizes)));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<double>((i + 1) * (key + 1) * 2654435761U % (std::uint64_t{1} << 32)) / 0x1p31 - 1;
  return from_data(v, sizes, {.dtype = dtype});
}

std::map<std::string, Tensor> with_numbers(nn::Module& m, DType dtype) {
  m.to(dtype);
  std::map<std::string, Tensor> parameters;  // sorted by name, as the golden file's keys are
  for (const auto& [name, p] : m.named_parameters()) parameters.emplace(name, p);
  std::uint64_t key = 0;
  for (auto& [name, p] : parameters) {
    const Tensor v = numbers(p.sizes(), key++, DType::f64);
    const double fan_in = static_cast<double>(p.numel()) / static_cast<double>(p.size(0));
    p.detach().copy_(p.dim() > 1 ? v / std::sqrt(fan_in) : v * 0.2 + (name.ends_with("weight") ? 1 : 0));
  }
  return parameters;
}

struct Data {
  Tensor images, noise, classes, times;
};

Data data_of(DType dtype) {
  return {numbers({4, 1, 8, 8}, 1000, dtype), numbers({4, 1, 8, 8}, 1001, dtype),
          from_data(std::vector<std::int64_t>{3, 1, 9, 0}, {4}),
          from_data(std::vector<std::int64_t>{0, 7, 50, 99}, {4})};
}

// The difference from the golden sum and norm by the norm.
double largest_difference(const nlohmann::json& golden, nn::Module& m, DType dtype,
                          const std::function<Tensor(const Data&)>& loss_of) {
  const auto parameters = with_numbers(m, dtype);
  CHECK(parameters.size() == golden.at("gradients").size());
  const Tensor loss = loss_of(data_of(dtype));
  loss.backward();
  double most = std::fabs(loss.item() / golden.at("loss").get<double>() - 1);
  for (const auto& entry : parameters) {
    const std::string& name = entry.first;
    const Tensor& p = entry.second;
    INFO(name);
    REQUIRE(p.grad().defined());
    const std::vector<double> g = values(p.grad());
    double sum = 0;
    double squares = 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      sum += g[i] * std::cos(static_cast<double>(i) + 1);
      squares += g[i] * g[i];
    }
    const auto& want = golden.at("gradients").at(name);
    const double norm = want[1].get<double>();
    most = std::max({most, std::fabs(sum - want[0].get<double>()) / norm, std::fabs(std::sqrt(squares) / norm - 1)});
  }
  return most;
}

}  // namespace

TEST_CASE("models have PyTorch's losses and gradients") {
  std::ifstream file(source_dir() + "/tests/golden/models.json");
  REQUIRE(file.good());
  const auto golden = nlohmann::json::parse(file);
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double bound = dtype == DType::f64 ? 1e-10 : 1e-4;
    CAPTURE(to_string(dtype));
    const auto check = [&](const char* name, auto model, const std::function<Tensor(const Data&)>& loss) {
      INFO(name);
      CHECK(largest_difference(golden.at(name), *model, dtype, loss) <= bound);
    };
    const auto classify = [&](const char* name, auto model) {
      check(name, model, [model](const Data& d) { return cross_entropy((*model)(d.images), d.classes); });
    };
    classify("resnet20", std::make_shared<models::ResNet20>(1, 10));
    classify("vit", std::make_shared<models::Vit>());
    classify("lstm", std::make_shared<models::RowReader>(8, 64, 10));
    const auto vae = std::make_shared<models::Vae>(64, 128, 16);
    check("vae", vae, [vae, dtype](const Data& d) {
      return vae->loss(flatten(d.images, 1) / 2 + 0.5, numbers({4, 16}, 1001, dtype));
    });
    const auto unet = std::make_shared<models::UNet>(1);
    check("unet", unet, [unet](const Data& d) { return unet->loss(d.images, d.noise, d.times); });
  }
}

TEST_CASE("GroupNorm is LayerNorm of each group, rounded once") {
  const Tensor x = numbers({2, 6, 3}, 3, DType::f32);
  nn::GroupNorm norm(3, 6);
  norm.weight.detach().copy_(numbers({6}, 4, DType::f32));
  norm.bias.detach().copy_(numbers({6}, 5, DType::f32));
  const Tensor plain = layer_norm(x.reshape({2, 3, 6}), 1).reshape({2, 6, 3});
  const Tensor want = plain * norm.weight.reshape({1, 6, 1}) + norm.bias.reshape({1, 6, 1});
  CHECK(distance(norm(x), want) == 0);
  const Tensor half = x.to(DType::bf16);
  CHECK(norm(half).dtype() == DType::bf16);
  CHECK(distance(norm(half), norm(half.to(DType::f32)).to(DType::bf16)) == 0);
  const Tensor far = (x * 0x1p100).to(DType::bf16);
  CHECK(allclose(norm(far), norm((far.to(DType::f32) * 0x1p-100).to(DType::bf16)), 0x1p-7, 0x1p-7));
  CHECK(message_of([] { nn::GroupNorm(4, 6); }) == "GroupNorm: 4 groups do not divide 6 channels");
  CHECK(message_of([] { nn::GroupNorm(0, 6); }) == "GroupNorm: groups is 0; it must be at least 1");
  CHECK(message_of([&] { norm(x.narrow(1, 0, 3)); }) == "GroupNorm: input [2, 3, 3]; allowed is [N, 6, ..]");
}

TEST_CASE("half models keep GroupNorm in f32") {
  models::UNet net(1);
  amp::to_half(net, DType::f16);
  for (const auto& [name, p] : net.named_parameters())
    CHECK((p.dtype() == DType::f32) == (name.find("norm") != std::string::npos));
}
