#include "gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "../core/ops.h"
#include "autograd.h"

namespace gradual::autograd {
namespace {

using Tensors = std::vector<Tensor>;
using Values = std::vector<double>;

constexpr std::int64_t kWholeJacobian = 100;  // outputs up to which every row is checked
constexpr int kProjections = 4;

Tensor leaf(const Tensor& t) {
  if (!t.defined() || !t.requires_grad()) return t;
  return clone(t.detach()).set_requires_grad();
}
Tensors leaves(const Tensors& inputs) {
  Tensors out;
  for (const Tensor& t : inputs) out.push_back(leaf(t));
  return out;
}

Tensors floating(const Tensors& all) {
  Tensors out;
  for (const Tensor& t : all)
    if (t.defined() && t.is_floating()) out.push_back(t);
  return out;
}

// The elements of all floating outputs, one after another.
Values flat(const Tensors& outputs) {
  Values v;
  for (const Tensor& t : floating(outputs)) {
    const Values part = t.to_vector<double>();
    v.insert(v.end(), part.begin(), part.end());
  }
  return v;
}

// Vectors to multiply the Jacobian with from the left.
std::vector<Values> probes(std::size_t outputs) {
  std::vector<Values> all;
  if (outputs <= static_cast<std::size_t>(kWholeJacobian)) {
    for (std::size_t k = 0; k < outputs; ++k) {
      all.emplace_back(outputs, 0.0);
      all.back()[k] = 1;
    }
    return all;
  }
  Generator g(0x9e3779b9);
  for (int k = 0; k < kProjections; ++k)
    all.push_back(randn({static_cast<std::int64_t>(outputs)}, {.dtype = DType::f64}, g).to_vector<double>());
  return all;
}

// The gradients of the inputs that require one, weighted with `probe`; undefined where there is no path.
Tensors analytic(const Tensors& outputs, const Tensors& inputs, const Values& probe) {
  Tensors ends;
  Tensors weights;
  auto at = probe.begin();
  for (const Tensor& t : floating(outputs)) {
    const Values part(at, at + t.numel());
    at += t.numel();
    if (!t.requires_grad()) continue;
    ends.push_back(t);
    weights.push_back(from_data(part, t.sizes(), {.dtype = t.dtype()}));
  }
  Tensors wanted;
  for (const Tensor& t : inputs)
    if (t.defined() && t.requires_grad()) wanted.push_back(t);
  if (ends.empty()) return Tensors(wanted.size());
  return grad(ends, wanted, weights, {.retain_graph = true, .allow_unused = true});
}

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", v);
  return text;
}

struct Checked {
  std::size_t input;                // its place among f's inputs
  std::vector<Values> differences;  // by element: of all outputs
};

// One input's numeric derivative by central differences.
Checked differentiate(const CheckedFunction& f, const Tensors& inputs, std::size_t input, double eps) {
  Checked c{input, {}};
  const Values start = inputs[input].to_vector<double>();
  const auto outputs_at = [&](std::size_t element, double shift) {
    Tensors moved = leaves(inputs);
    Values v = start;
    v[element] += shift;
    moved[input] = from_data(v, inputs[input].sizes(), {.dtype = DType::f64, .requires_grad = true});
    return flat(f(moved));
  };
  for (std::size_t e = 0; e < start.size(); ++e) {
    Values up = outputs_at(e, eps);
    const Values down = outputs_at(e, -eps);
    for (std::size_t k = 0; k < up.size(); ++k) up[k] = (up[k] - down[k]) / (2 * eps);
    c.differences.push_back(std::move(up));
  }
  return c;
}

std::string compare(const Checked& c, const Tensor& gradient, const Tensor& input, const Values& probe,
                    std::size_t number_of_probe, const GradcheckOptions& o) {
  if (gradient.defined() && (gradient.sizes() != input.sizes() || gradient.dtype() != input.dtype()))
    return "input " + std::to_string(c.input) + " is " + to_string(input.sizes()) + " " +
           std::string(name(input.dtype())) + ", its gradient " + to_string(gradient.sizes()) + " " +
           std::string(name(gradient.dtype()));
  const Values got = gradient.defined() ? gradient.to_vector<double>() : Values(c.differences.size(), 0.0);
  for (std::size_t e = 0; e < got.size(); ++e) {
    double want = 0;
    for (std::size_t k = 0; k < probe.size(); ++k)
      if (probe[k] != 0) want += probe[k] * c.differences[e][k];
    if (std::fabs(got[e] - want) <= o.atol + o.rtol * std::fabs(want)) continue;  // NaN fails
    return "input " + std::to_string(c.input) + ", element " + std::to_string(e) + " of " + to_string(input.sizes()) +
           ", output " + std::to_string(number_of_probe) + ": analytic " + number(got[e]) + ", numeric " +
           number(want) + (gradient.defined() ? "" : " (the tape has no path to this input)");
  }
  return "";
}

GradcheckResult checked(const CheckedFunction& f, const Tensors& given, const GradcheckOptions& o) {
  const Tensors inputs = leaves(given);
  const Tensors outputs = f(inputs);
  const Values values = flat(outputs);
  const Values again = flat(f(inputs));
  const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  if (!std::equal(values.begin(), values.end(), again.begin(), again.end(), same))
    return {false, "a second call gives other outputs"};
  std::vector<Checked> columns;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined() && inputs[i].requires_grad()) columns.push_back(differentiate(f, inputs, i, o.eps));
  const std::vector<Values> all = probes(values.size());
  for (std::size_t p = 0; p < all.size(); ++p) {
    const Tensors gradients = analytic(outputs, inputs, all[p]);
    for (std::size_t k = 0; k < columns.size(); ++k) {
      const std::string problem = compare(columns[k], gradients[k], inputs[columns[k].input], all[p], p, o);
      if (!problem.empty()) return {false, problem};
    }
  }
  return {};
}

void check_inputs(const char* name, const Tensors& inputs) {
  bool any = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    any = true;
    if (inputs[i].dtype() != DType::f64)
      fail(std::string(name) + ": input " + std::to_string(i) + " is " + std::string(gradual::name(inputs[i].dtype())) +
           "; differences need f64");
  }
  if (!any) fail(std::string(name) + ": no input requires a gradient");
}

}  // namespace

GradcheckResult gradcheck(const CheckedFunction& f, const std::vector<Tensor>& inputs, GradcheckOptions options) {
  check_inputs("gradcheck", inputs);
  return checked(f, inputs, options);
}

GradcheckResult gradgradcheck(const CheckedFunction& f, const std::vector<Tensor>& inputs, GradcheckOptions options) {
  check_inputs("gradgradcheck", inputs);
  // The gradients that arrive are inputs too: random, for a rule may be right for ones alone.
  Generator g(0x7f4a7c15);
  Tensors all = inputs;
  for (const Tensor& t : floating(f(leaves(inputs))))
    if (t.requires_grad()) all.push_back(randn(t.sizes(), {.dtype = t.dtype(), .requires_grad = true}, g));
  const std::size_t count = inputs.size();
  const CheckedFunction gradient = [&f, count](const Tensors& at) {
    const Tensors own(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(count));
    Tensors ends;
    for (const Tensor& t : floating(f(own)))
      if (t.requires_grad()) ends.push_back(t);
    Tensors wanted;
    for (const Tensor& t : own)
      if (t.defined() && t.requires_grad()) wanted.push_back(t);
    if (ends.empty()) return Tensors{};
    const Tensors weights(at.begin() + static_cast<std::ptrdiff_t>(count), at.end());
    return grad(ends, wanted, weights, {.create_graph = true, .allow_unused = true});
  };
  return checked(gradient, all, options);
}

}  // namespace gradual::autograd
