#include "summary.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "../autograd/grad_mode.h"

namespace gradual::nn {
namespace {

// Forward hooks and eval mode on all modules while it lives.
class Watch {
 public:
  Watch(Module& model, const ForwardHook& hook) : modules_(model.named_modules()) {
    for (const auto& named : modules_) {
      training_.push_back(named.second->training());
      hooks_.push_back(named.second->register_forward_hook(hook));
    }
    model.eval();
  }
  ~Watch() {
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      modules_[i].second->remove_forward_hook(hooks_[i]);
      modules_[i].second->set_training(training_[i]);
    }
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::vector<std::pair<std::string, Module*>> modules_;
  std::vector<bool> training_;
  std::vector<std::uint64_t> hooks_;
};

std::unordered_map<const Module*, std::string> output_shapes(Module& model, const Shape& input, DType dtype) {
  std::unordered_map<const Module*, std::string> shapes;
  const Watch watch(model, [&](Module& m, const Tensor&, const Tensor& y) {
    shapes[&m] = y.defined() ? to_string(y.sizes()) + " " + std::string(name(y.dtype())) : "-";
  });
  const NoGrad no_grad;
  Generator generator;
  const GeneratorScope scope(generator);
  model(zeros(input, {.dtype = dtype}));
  return shapes;
}

// 1234567 -> "1,234,567"
std::string grouped(std::size_t n) {
  const std::string digits = std::to_string(n);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

constexpr std::size_t kColumns = 4;
using Row = std::vector<std::string>;

// Names and outputs to the left, numbers to the right.
std::string table(const std::vector<Row>& rows) {
  std::size_t widths[kColumns] = {};
  for (const Row& row : rows)
    for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < kColumns; ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      text += i < 2 ? row[i] + space + "  " : (i > 2 ? "  " : "") + space + row[i];
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::string summary(Module& model, const Shape& input, DType dtype) {
  const auto shapes = output_shapes(model, input, dtype);
  std::vector<Row> rows = {{"layer", "output", "parameters", "bytes"}};
  std::size_t count = 0, trainable = 0, parameter_bytes = 0, buffer_bytes = 0;
  std::unordered_set<const TensorImpl*> seen;
  for (const auto& [path, module] : model.named_modules()) {
    std::size_t own = 0, bytes = 0;
    for (const auto& named : module->named_parameters(false)) {
      const Tensor& p = named.second;
      if (!seen.insert(p.unsafe_impl()).second) continue;  // shared: counted where it came first
      own += static_cast<std::size_t>(p.numel());
      bytes += p.nbytes();
      if (p.requires_grad()) trainable += static_cast<std::size_t>(p.numel());
    }
    count += own;
    parameter_bytes += bytes;
    for (const auto& named : module->named_buffers(false)) {
      if (!seen.insert(named.second.unsafe_impl()).second) continue;
      bytes += named.second.nbytes();
      buffer_bytes += named.second.nbytes();
    }
    const std::size_t depth =
        path.empty() ? 0 : 1 + static_cast<std::size_t>(std::count(path.begin(), path.end(), '.'));
    const std::string name = path.empty() ? module->kind() : path.substr(path.rfind('.') + 1) + ": " + module->kind();
    const auto shape = shapes.find(module);
    rows.push_back({std::string(2 * depth, ' ') + name, shape == shapes.end() ? "-" : shape->second,
                    own ? grouped(own) : "-", bytes ? grouped(bytes) : "-"});
  }
  return table(rows) + grouped(count) + " parameters, " + grouped(trainable) + " trainable; " +
         grouped(parameter_bytes) + " bytes of parameters, " + grouped(buffer_bytes) + " of buffers\n";
}

}  // namespace gradual::nn
