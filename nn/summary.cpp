#include "summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "../autograd/grad_mode.h"
#include "../core/support/message_text.h"

namespace gradual::nn {
namespace {

std::unordered_map<const Module*, std::string> output_shapes(Module& model, const Shape& input, DType dtype) {
  std::unordered_map<const Module*, std::string> shapes;
  const ForwardHook hook = [&](Module& m, const Tensor&, const Tensor& y) {
    shapes[&m] = y.defined() ? describe(y) : "-";
  };
  std::vector<std::shared_ptr<void>> undo;  // on exceptions too
  for (const auto& named : model.named_modules()) {
    Module* m = named.second;
    undo.emplace_back(nullptr, [m, training = m->training(), id = m->register_forward_hook(hook)](void*) {
      m->remove_forward_hook(id);
      m->set_training(training);
    });
  }
  model.eval();
  const NoGrad no_grad;
  Generator generator;
  const GeneratorScope scope(generator);
  model(zeros(input, {.dtype = dtype}));
  return shapes;
}

// 1234567 -> "1,234,567"
std::string grouped(std::size_t n) {
  std::string text = std::to_string(n);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

}  // namespace

std::string summary(Module& model, const Shape& input, DType dtype) {
  const auto shapes = output_shapes(model, input, dtype);
  std::vector<std::vector<std::string>> rows = {{"layer", "output", "parameters", "bytes"}};
  std::size_t count = 0;
  std::size_t trainable = 0;
  std::size_t parameter_bytes = 0;
  std::size_t buffer_bytes = 0;
  std::unordered_set<const TensorImpl*> seen;
  for (const auto& [path, module] : model.named_modules()) {
    std::size_t own = 0;
    std::size_t bytes = 0;
    for (const bool buffers : {false, true})
      for (const auto& named : buffers ? module->named_buffers(false) : module->named_parameters(false)) {
        const Tensor& t = named.second;
        if (!seen.insert(t.unsafe_impl()).second) continue;  // shared: counted at its first occurrence
        const std::size_t n = buffers ? 0 : static_cast<std::size_t>(t.numel());
        own += n;
        if (t.requires_grad()) trainable += n;
        bytes += t.nbytes();
        (buffers ? buffer_bytes : parameter_bytes) += t.nbytes();
      }
    count += own;
    const auto depth = path.empty() ? 0 : 1 + std::ranges::count(path, '.');
    const std::string label = path.empty() ? "" : path.substr(path.rfind('.') + 1) + ": ";
    const auto shape = shapes.find(module);
    rows.push_back({fmt::format("{:{}}{}{}", "", 2 * depth, label, module->kind()),
                    shape == shapes.end() ? "-" : shape->second, own ? grouped(own) : "-",
                    bytes ? grouped(bytes) : "-"});
  }
  return table_of(rows, 2) + fmt::format("{} parameters, {} trainable; {} bytes of parameters, {} of buffers\n",
                                         grouped(count), grouped(trainable), grouped(parameter_bytes),
                                         grouped(buffer_bytes));
}

}  // namespace gradual::nn
