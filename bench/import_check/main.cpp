// gradual-import-check compare FILE.pt2 GIVEN.safetensors OUT.safetensors f32|f64: calls an exported model and writes
// its outputs, loss, gradients and buffers, by the names of reference.py. GIVEN has input.NAME and cotangent.N; the
// loss is the sum over outputs of sum(output * cotangent). Prints the seconds of loading, forward and backward.
// gradual-import-check train FILE.pt2 GIVEN.safetensors OUT.safetensors LR: trains a model whose first output is its
// loss with SGD. GIVEN has input.NAME [steps, ..]. Writes `losses` and `seconds`, f64 [steps]. Prints the seconds of
// loading and the most memory used after it and at the end, in MiB.
// gradual-import-check race FILE.pt2 GIVEN.safetensors OUT.safetensors resnet|gpt: times a model of twins.py and the
// same one of twins.h in turn.
#include <gradual/gradual.h>
#include <gradual/pt2/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twins.h"

namespace {

using namespace gradual;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Tensor in_dtype(const Tensor& t, DType dtype) { return t.is_floating() ? t.to(dtype) : t; }

void check(const std::string& file, const std::string& given, const std::string& out, DType dtype) {
  const auto start = std::chrono::steady_clock::now();
  const std::shared_ptr<pt2::ExportedModule> module = pt2::load(file);
  module->to(dtype);
  const double loading = seconds_since(start);
  const StateDict tensors = load_safetensors(given).tensors;
  std::vector<Tensor> inputs;
  for (const pt2::InputInfo& in : module->inputs())
    inputs.push_back(in_dtype(tensors.tensor("input." + in.name), dtype));
  const auto called = std::chrono::steady_clock::now();
  const std::vector<Tensor> outputs = (*module)(inputs);
  const double forward = seconds_since(called);
  StateDict results;
  Tensor loss;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string number = std::to_string(i);
    results.set("output." + number, outputs[i].detach().contiguous());
    if (!tensors.contains("cotangent." + number)) continue;
    const Tensor term = sum(outputs[i] * tensors.tensor("cotangent." + number).to(outputs[i].dtype()));
    loss = loss.defined() ? loss + term : term;
  }
  const auto back = std::chrono::steady_clock::now();
  if (loss.defined() && loss.requires_grad()) {
    loss.backward();
    results.set("loss", loss.detach());
  }
  const double backward = seconds_since(back);
  for (const auto& [path, part] : module->named_modules())  // tied parameters under each of their names
    for (const auto& [name, p] : part->named_parameters(false))
      if (p.grad().defined()) results.set("grad." + (path.empty() ? name : path + "." + name), p.grad().contiguous());
  for (const auto& [name, b] : module->named_buffers()) results.set("buffer." + name, b.detach().contiguous());
  save_safetensors(out, results);
  std::printf("%.3f %.3f %.3f\n", loading, forward, backward);
}

// The most memory that the process has used so far, by Linux (getrusage would count the parent's).
double peak_mebibytes() {
  std::ifstream status("/proc/self/status");
  constexpr std::string_view kPeak = "VmHWM:";
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kPeak)) return std::stod(line.substr(kPeak.size())) / 1024;
  return std::nan("");
}

void train(const std::string& file, const std::string& given, const std::string& out, double lr) {
  const double before = peak_mebibytes();
  const auto start = std::chrono::steady_clock::now();
  const std::shared_ptr<pt2::ExportedModule> module = pt2::load(file);
  std::printf("%.3f %.1f ", seconds_since(start), peak_mebibytes() - before);
  const StateDict tensors = load_safetensors(given).tensors;
  std::vector<Tensor> all;
  for (const pt2::InputInfo& in : module->inputs()) all.push_back(tensors.tensor("input." + in.name));
  std::vector<Tensor> parameters;
  for (const auto& [name, p] : module->named_parameters()) parameters.push_back(p);
  optim::SGD optimizer(parameters, {.lr = lr});
  std::vector<double> losses;
  std::vector<double> seconds;
  for (std::int64_t step = 0; step < all.at(0).size(0); ++step) {
    std::vector<Tensor> inputs;
    for (const Tensor& t : all) inputs.push_back(select(t, 0, step));
    const auto began = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const Tensor loss = (*module)(inputs).at(0);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item());
    seconds.push_back(seconds_since(began));
  }
  StateDict results;
  const auto count = static_cast<std::int64_t>(losses.size());
  results.set("losses", from_data(losses, {count}, {.dtype = DType::f64}));
  results.set("seconds", from_data(seconds, {count}, {.dtype = DType::f64}));
  save_safetensors(out, results);
  std::printf("%.1f\n", peak_mebibytes() - before);
}

// A step of SGD in turn by the imported model and by the one written in C++, from the same weights. Writes the seconds
// of each, and prints the largest difference of their losses.
template <class Net> void race_of(Net& net, const std::string& file, const std::string& given, const std::string& out) {
  const std::shared_ptr<pt2::ExportedModule> imported = pt2::load(file);
  net.load_state_dict(imported->state_dict());
  const StateDict tensors = load_safetensors(given).tensors;
  std::vector<Tensor> all;
  for (const pt2::InputInfo& in : imported->inputs()) all.push_back(tensors.tensor("input." + in.name));
  optim::SGD of_imported(imported->parameters(), {.lr = 1e-4});
  optim::SGD of_written(net.parameters(), {.lr = 1e-4});
  const auto timed = [](optim::SGD& optimizer, const auto& forward, std::vector<double>& seconds) {
    const auto began = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const Tensor loss = forward();
    loss.backward();
    optimizer.step();
    const double value = loss.item();
    seconds.push_back(seconds_since(began));
    return value;
  };
  std::vector<double> seconds_imported;
  std::vector<double> seconds_written;
  double apart = 0;
  for (std::int64_t step = 0; step < all.at(0).size(0); ++step) {
    std::vector<Tensor> inputs;
    for (const Tensor& t : all) inputs.push_back(select(t, 0, step));
    const double a = timed(
        of_imported, [&] { return (*imported)(inputs).at(0); }, seconds_imported);
    const double b = timed(
        of_written, [&] { return twins::loss_of(net, inputs); }, seconds_written);
    apart = std::max(apart, std::abs(a - b));
  }
  const auto count = static_cast<std::int64_t>(seconds_written.size());
  StateDict results;
  results.set("imported", from_data(seconds_imported, {count}, {.dtype = DType::f64}));
  results.set("written", from_data(seconds_written, {count}, {.dtype = DType::f64}));
  save_safetensors(out, results);
  std::printf("%.3g\n", apart);
}

void race(const std::string& file, const std::string& given, const std::string& out, const std::string& model) {
  if (model == "resnet") {
    models::ResNet20 net(3, 10);
    race_of(net, file, given, out);
  } else if (model == "gpt") {
    twins::GPT net(1000, 64, 128, 4, 4);
    race_of(net, file, given, out);
  } else {
    throw Error("race: the model is resnet or gpt, not " + model);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string command = count == 6 ? arguments[1] : "";
  if (command != "compare" && command != "train" && command != "race") {
    std::fprintf(stderr,
                 "usage: gradual-import-check compare FILE.pt2 GIVEN.safetensors OUT.safetensors f32|f64\n"
                 "       gradual-import-check train FILE.pt2 GIVEN.safetensors OUT.safetensors LR\n"
                 "       gradual-import-check race FILE.pt2 GIVEN.safetensors OUT.safetensors resnet|gpt\n");
    return 2;
  }
  try {
    if (command == "compare") check(arguments[2], arguments[3], arguments[4], dtype_from_name(arguments[5]));
    else if (command == "race") race(arguments[2], arguments[3], arguments[4], arguments[5]);
    else train(arguments[2], arguments[3], arguments[4], std::stod(arguments[5]));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
