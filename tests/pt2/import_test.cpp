// Exported models against what PyTorch computes for them (tests/golden/pt2/make.py).
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/pt2/module.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "support/exported.h"
#include "support/source_dir.h"

using namespace gradual;

namespace {

std::string golden(const std::string& name) { return source_dir() + "/tests/golden/pt2/" + name; }

Tensor in_dtype(const Tensor& t, DType dtype) { return t.is_floating() ? t.to(dtype) : t; }

double largest(const Tensor& t) { return t.numel() == 0 ? 0 : max(abs(t)).item(); }

// The largest difference, relative to the largest magnitude of `wanted`, or to `least` where that is smaller.
double difference(const Tensor& got, const Tensor& wanted, double least = 1e-3) {
  REQUIRE(got.sizes() == wanted.sizes());
  if (wanted.numel() == 0) return 0;
  const Tensor a = got.to(DType::f64);
  const Tensor b = wanted.to(DType::f64);
  return largest(a - b) / std::max(least, largest(b));
}

std::vector<Tensor> inputs_of(const pt2::ExportedModule& module, const StateDict& golden, DType dtype) {
  std::vector<Tensor> inputs;
  for (const pt2::InputInfo& in : module.inputs()) inputs.push_back(in_dtype(golden.tensor("input." + in.name), dtype));
  return inputs;
}

void compare(const std::string& name, DType dtype, double tolerance) {
  CAPTURE(name);
  const auto module = pt2::load(golden(name + ".pt2"));
  module->to(dtype);
  const StateDict wanted = load_safetensors(golden(name + ".safetensors")).tensors;
  const std::vector<Tensor> outputs = (*module)(inputs_of(*module, wanted, dtype));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    CAPTURE(i);
    CHECK(difference(outputs[i], wanted.tensor("output." + std::to_string(i))) < tolerance);
  }
  CHECK_FALSE(wanted.contains("output." + std::to_string(outputs.size())));
  const Tensor loss = testing::loss_of(outputs, wanted);
  CHECK(difference(loss.detach(), wanted.tensor("loss")) < tolerance);
  loss.backward();
  double least = 0;  // the gradient of a bias before a batch norm is 0 up to rounding
  for (const auto& entry : wanted)
    if (entry.name.starts_with("grad.")) least = std::max(least, largest(std::get<Tensor>(entry.value)) / 100);
  std::size_t gradients = 0;
  for (const auto& [path, part] : module->named_modules()) {  // tied parameters under each of their names
    for (const auto& [name_of, p] : part->named_parameters(false)) {
      const std::string key = "grad." + (path.empty() ? name_of : path + "." + name_of);
      CAPTURE(key);
      if (!wanted.contains(key)) continue;
      ++gradients;
      REQUIRE(p.grad().defined());
      CHECK(difference(p.grad(), wanted.tensor(key), least) < tolerance);
    }
  }
  std::size_t expected = 0;
  for (const auto& entry : wanted) expected += entry.name.starts_with("grad.") ? 1 : 0;
  CHECK(gradients == expected);
  for (const auto& [key, b] : module->named_buffers()) {
    CAPTURE(key);
    CHECK(difference(b, wanted.tensor("buffer." + key)) < tolerance);
  }
}

const char* const kModels[] = {"mlp", "cnn",       "residual", "tied", "attention",
                               "gpt", "recurrent", "in_place", "unet", "evaluation"};

}  // namespace

TEST_CASE("exported models give PyTorch's outputs, gradients and buffers") {
  for (const char* name : kModels) {
    compare(name, DType::f64, 1e-10);
    compare(name, DType::f32, 1e-4);
  }
}
