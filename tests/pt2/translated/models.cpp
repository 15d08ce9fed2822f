// Translated models (gradual-lab translate) against the same files as pt2::load reads them: all bits are the same. The
// build writes the headers.
#include <gradual/gradual.h>
#include <gradual/pt2/module.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "attention.h"
#include "cnn.h"
#include "evaluation.h"
#include "gpt.h"
#include "in_place.h"
#include "mlp.h"
#include "recurrent.h"
#include "residual.h"
#include "support/exported.h"
#include "tied.h"
#include "unet.h"

using namespace gradual;

namespace {

int failures = 0;

void check(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("differs: %s\n", what.c_str());
  ++failures;
}

std::vector<Tensor> listed(const Tensor& t) { return {t}; }
template <class... T> std::vector<Tensor> listed(const std::tuple<T...>& all) {
  return std::apply([](const T&... t) { return std::vector<Tensor>{t...}; }, all);
}

std::string sorted_names(const nn::NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, t] : tensors) names.push_back(name);
  std::ranges::sort(names);
  std::string all;
  for (const std::string& name : names) all += name + " ";
  return all;
}

const Tensor* find(const nn::NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, t] : tensors)
    if (key == name) return &t;
  return nullptr;
}
const Tensor* find(nn::NamedTensors&& tensors, const std::string& name) = delete;  // the pointer would outlive them

// Two steps, so that the second sees what the first left in the buffers.
template <class Model, class Call> void compare(const std::string& folder, const std::string& name, const Call& call) {
  const auto loaded = pt2::load(folder + "/" + name + ".pt2");
  const StateDict golden = load_safetensors(folder + "/" + name + ".safetensors").tensors;
  Model model;
  model.load_state_dict(loaded->state_dict());
  check(model.training() == loaded->training(), name + ": the mode");
  std::vector<Tensor> inputs;
  for (const pt2::InputInfo& in : loaded->inputs()) {
    const Tensor& t = golden.tensor("input." + in.name);
    inputs.push_back(t.is_floating() ? t.to(DType::f32) : t);
  }
  for (int step = 0; step < 2; ++step) {
    manual_seed(7);
    const std::vector<Tensor> wanted = (*loaded)(inputs);
    manual_seed(7);
    const std::vector<Tensor> outputs = listed(call(model, inputs));
    check(outputs.size() == wanted.size(), name + ": the number of outputs");
    for (std::size_t i = 0; i < outputs.size() && i < wanted.size(); ++i)
      check(testing::same_bits_or_none(outputs[i], wanted[i]), name + ": output " + std::to_string(i));
    testing::loss_of(wanted, golden).backward();
    testing::loss_of(outputs, golden).backward();
  }
  check(sorted_names(model.named_parameters()) == sorted_names(loaded->named_parameters()), name + ": the names");
  const nn::NamedTensors parameters = model.named_parameters();
  const nn::NamedTensors buffers = model.named_buffers();
  int compared = 0;
  for (const auto& [key, p] : loaded->named_parameters()) {
    const Tensor* const other = find(parameters, key);
    check(other && testing::same_bits_or_none(other->grad(), p.grad()), name + ": the gradient of " + key);
    compared += p.grad().defined() ? 1 : 0;
  }
  check(compared > 0, name + ": gradients");
  for (const auto& [key, b] : loaded->named_buffers()) {
    const Tensor* const other = find(buffers, key);
    check(other && testing::same_bits_or_none(*other, b), name + ": the buffer " + key);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  const auto one = [](auto& model, const std::vector<Tensor>& in) { return model(in[0]); };
  const auto two = [](auto& model, const std::vector<Tensor>& in) { return model(in[0], in[1]); };
  compare<mlp_model::MLP>(folder, "mlp", one);
  compare<cnn_model::CNN>(folder, "cnn", one);
  compare<residual_model::Residual>(folder, "residual", one);
  compare<tied_model::Tied>(folder, "tied", one);
  compare<attention_model::Attention>(folder, "attention", two);
  compare<gpt_model::GPT>(folder, "gpt", two);
  compare<recurrent_model::Recurrent>(folder, "recurrent", one);
  compare<in_place_model::InPlace>(folder, "in_place", one);
  compare<unet_model::UNet>(folder, "unet", one);
  compare<evaluation_model::CNN>(folder, "evaluation", one);
  if (failures == 0) std::printf("all bits are the same\n");
  return failures == 0 ? 0 : 1;
}
