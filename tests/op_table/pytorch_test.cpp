// Values and gradients against PyTorch's (tests/golden/make_pytorch.py wrote them).
#include <doctest/doctest.h>
#include <gradual/autograd/autograd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "op_table.h"

#include "support/source_dir.h"

namespace gradual::test {
namespace {

using Json = nlohmann::json;

Tensor from_json(const Json& j) {
  if (j.is_null()) return {};
  const Shape sizes(j.at("shape").get<std::vector<std::int64_t>>());
  return from_data(j.at("data").get<std::vector<double>>(), sizes,
                   {.dtype = dtype_from_name(j.at("dtype").get<std::string>())});
}

Reduction reduction(const Json& a) {
  const auto name = a.at("reduction").get<std::string>();
  return name == "none" ? Reduction::none : name == "sum" ? Reduction::sum : Reduction::mean;
}
std::int64_t integer(const Json& a, const char* key) { return a.at(key).get<std::int64_t>(); }
Pool2dOptions pool(const Json& a) { return {integer(a, "kernel"), integer(a, "stride"), integer(a, "padding")}; }

using Golden = Tensor (*)(const Json& a, const Tensors& t);

const std::map<std::string, Golden>& calls() {
  static const std::map<std::string, Golden> all{
      {"conv2d",
       [](const Json& a, const Tensors& t) {
         const Conv2dOptions options{integer(a, "stride"), integer(a, "padding"), integer(a, "dilation"),
                                     integer(a, "groups")};
         return conv2d(t[0], t[1], t[2], options);
       }},
      {"batch_norm",
       [](const Json& a, const Tensors& t) {
         return batch_norm(t[0], t[1], t[2], t[3].detach(), t[4].detach(), a.at("training"), a.at("eps")).y;
       }},
      {"layer_norm",
       [](const Json& a, const Tensors& t) { return layer_norm(t[0], a.at("dims"), t[1], t[2], a.at("eps")); }},
      {"rms_norm", [](const Json& a, const Tensors& t) { return rms_norm(t[0], a.at("dims"), t[1], a.at("eps")); }},
      {"cross_entropy",
       [](const Json& a, const Tensors& t) {
         return cross_entropy(t[0], t[1], {reduction(a), a.at("label_smoothing"), a.at("ignore_index")});
       }},
      {"sdpa",
       [](const Json& a, const Tensors& t) {
         return scaled_dot_product_attention(t[0], t[1], t[2], t[3],
                                             {.causal = a.at("causal"), .scale = a.at("scale")});
       }},
      {"embedding", [](const Json&, const Tensors& t) { return embedding(t[0], t[1]); }},
      {"gelu", [](const Json& a, const Tensors& t) { return gelu(t[0], a.at("tanh") ? Gelu::tanh : Gelu::exact); }},
      {"adaptive_avg_pool2d",
       [](const Json& a, const Tensors& t) { return adaptive_avg_pool2d(t[0], a.at("size")[0], a.at("size")[1]); }},
      {"max_pool2d", [](const Json& a, const Tensors& t) { return max_pool2d(t[0], pool(a)); }},
      {"avg_pool2d", [](const Json& a, const Tensors& t) { return avg_pool2d(t[0], pool(a)); }},
      {"softplus", [](const Json&, const Tensors& t) { return softplus(t[0]); }},
      {"silu", [](const Json&, const Tensors& t) { return silu(t[0]); }},
      {"bce_with_logits", [](const Json&, const Tensors& t) { return bce_with_logits_loss(t[0], t[1]); }},
      {"logsumexp", [](const Json&, const Tensors& t) { return logsumexp(t[0], {1}); }},
      {"var", [](const Json&, const Tensors& t) { return var(t[0], {1}); }},
      {"norm", [](const Json&, const Tensors& t) { return norm(t[0], 3, {1}); }},
  };
  return all;
}

// Twelve digits are in the file; sums of some dozen terms may lose another.
std::string far(const Tensor& got, const Json& golden) {
  const Tensor want = from_json(golden);
  if (got.sizes() != want.sizes()) return to_string(got.sizes()) + ", PyTorch has " + to_string(want.sizes());
  const Array a = to_array(got);
  const Array b = to_array(want);
  for (std::int64_t i = 0; i < a.numel(); ++i)
    if (!(std::fabs(a[i] - b[i]) <= 1e-10 * (1 + std::fabs(b[i]))))
      return "element " + std::to_string(i) + " differs from PyTorch's " + std::to_string(b[i]) + " by " +
             Json(a[i] - b[i]).dump();
  return "";
}

TEST_CASE("values and gradients agree with PyTorch's") {
  std::ifstream file(source_dir() + "/tests/golden/pytorch.json");
  REQUIRE(file.good());
  const Json all = Json::parse(file);
  REQUIRE(all.size() == all[0].at("cases").get<std::size_t>() + 1);
  for (std::size_t k = 1; k < all.size(); ++k) {
    const Json& c = all[k];
    const auto op = c.at("op").get<std::string>();
    const std::string where = op + " " + c.at("attrs").dump();
    Tensors inputs;
    Tensors leaves;
    for (const Json& j : c.at("inputs")) {
      inputs.push_back(from_json(j));
      if (inputs.back().defined() && inputs.back().is_floating()) leaves.push_back(inputs.back().set_requires_grad());
    }
    const Tensor y = calls().at(op)(c.at("attrs"), inputs);
    expect_none(far(y, c.at("output")), where);
    std::vector<double> w(static_cast<std::size_t>(y.numel()));
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = std::cos(static_cast<double>(i) + 1);
    const Tensors gradients =
        autograd::grad({y}, leaves, {from_data(w, y.sizes(), {.dtype = DType::f64})}, {.allow_unused = true});
    for (std::size_t i = 0; i < leaves.size(); ++i)
      expect_none(far(gradients[i].defined() ? gradients[i] : zeros_like(leaves[i]), c.at("gradients")[i]),
                  where + ", gradient " + std::to_string(i));
  }
}

}  // namespace
}  // namespace gradual::test
