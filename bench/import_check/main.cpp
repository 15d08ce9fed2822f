// gradual-import-check FILE.pt2 GIVEN.safetensors OUT.safetensors f32|f64: calls an exported model and writes its
// outputs, loss, gradients and buffers, by the names of reference.py. GIVEN has input.NAME and cotangent.N; the loss is
// the sum over outputs of sum(output * cotangent). Prints the seconds of loading, forward and backward.
#include <gradual/gradual.h>
#include <gradual/pt2/module.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>

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

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: gradual-import-check FILE.pt2 GIVEN.safetensors OUT.safetensors f32|f64\n");
    return 2;
  }
  try {
    check(arguments[1], arguments[2], arguments[3], dtype_from_name(arguments[4]));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
