#include "gradcheck.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "../core/failf.h"
#include "../core/ops.h"
#include "autograd.h"
#include "node.h"

namespace gradual::autograd {
namespace {

using Tensors = std::vector<Tensor>;
using Values = std::vector<double>;

constexpr std::size_t kWholeJacobian = 100;  // outputs up to which every row is checked
constexpr int kProjections = 4;

bool wanted(const Tensor& t) { return t.defined() && t.requires_grad(); }
Tensors all_wanted(const Tensors& tensors) {
  Tensors out;
  std::ranges::copy_if(tensors, std::back_inserter(out), wanted);
  return out;
}

Tensors leaves(Tensors inputs) {
  for (Tensor& t : inputs)
    if (wanted(t)) t = clone(t.detach()).set_requires_grad();
  return inputs;
}

// The elements of all floating outputs, one after another.
Values flat(const Tensors& outputs) {
  Values v;
  for (const Tensor& t : outputs)
    if (t.defined() && t.is_floating()) std::ranges::copy(t.to_vector<double>(), std::back_inserter(v));
  return v;
}

// Vectors to multiply the Jacobian with from the left.
std::vector<Values> probes(std::size_t outputs) {
  std::vector<Values> all;
  for (std::size_t k = 0; k < outputs && outputs <= kWholeJacobian; ++k) {
    all.emplace_back(outputs, 0.0);
    all.back()[k] = 1;
  }
  Generator g(0x9e3779b9);
  for (int k = 0; k < kProjections && outputs > kWholeJacobian; ++k)
    all.push_back(randn({static_cast<std::int64_t>(outputs)}, {.dtype = DType::f64}, g).to_vector<double>());
  return all;
}

// The gradients of the inputs that require one; undefined where there is no path. `weights`: of such outputs.
Tensors gradients(const Tensors& outputs, const Tensors& inputs, const Tensors& weights, GradOptions options) {
  const Tensors ends = all_wanted(outputs);
  const Tensors into = all_wanted(inputs);
  return ends.empty() ? Tensors(into.size()) : grad(ends, into, weights, options);
}
Tensors analytic(const Tensors& outputs, const Tensors& inputs, const Values& probe) {
  Tensors weights;
  auto at = probe.begin();
  for (const Tensor& t : outputs) {
    if (!t.defined() || !t.is_floating()) continue;
    if (t.requires_grad()) weights.push_back(from_data(Values(at, at + t.numel()), t.sizes(), {.dtype = t.dtype()}));
    at += t.numel();
  }
  return gradients(outputs, inputs, weights, {.retain_graph = true, .allow_unused = true});
}

// f's outputs where one element of one input is moved.
Values moved(const CheckedFunction& f, const Tensors& inputs, std::size_t input, std::size_t element, double by) {
  Tensors at = leaves(inputs);
  Values v = at[input].to_vector<double>();
  v[element] += by;
  at[input] = from_data(v, at[input].sizes(), {.dtype = DType::f64, .requires_grad = true});
  return flat(f(at));
}

// What is wrong with the gradients of one input, one for each probe; empty where nothing is.
std::string compare(const CheckedFunction& f, const Tensors& inputs, std::size_t input, const Tensors& gradients_of,
                    const std::vector<Values>& all, const GradcheckOptions& o) {
  const Tensor& x = inputs[input];
  std::vector<Values> got;
  for (const Tensor& g : gradients_of) {
    if (g.defined() && (g.sizes() != x.sizes() || g.dtype() != x.dtype()))
      return fmt::format("input {} is {}, its gradient {}", input, kind_of(x), kind_of(g));
    got.push_back(g.defined() ? g.to_vector<double>() : Values(static_cast<std::size_t>(x.numel()), 0.0));
  }
  for (std::size_t e = 0; e < static_cast<std::size_t>(x.numel()); ++e) {
    const Values up = moved(f, inputs, input, e, o.eps);
    const Values down = moved(f, inputs, input, e, -o.eps);
    for (std::size_t p = 0; p < all.size(); ++p) {
      double want = 0;
      for (std::size_t k = 0; k < up.size(); ++k)
        if (all[p][k] != 0) want += all[p][k] * ((up[k] - down[k]) / (2 * o.eps));
      if (std::fabs(got[p][e] - want) <= o.atol + o.rtol * std::fabs(want)) continue;  // NaN fails
      return fmt::format("input {}, element {} of {}, output {}: analytic {:.9g}, numeric {:.9g}{}", input, e,
                         to_string(x.sizes()), p, got[p][e], want,
                         gradients_of[p].defined() ? "" : " (the tape has no path to this input)");
    }
  }
  return "";
}

GradcheckResult checked(const CheckedFunction& f, const Tensors& given, const GradcheckOptions& o) {
  const Tensors inputs = leaves(given);
  const Tensors outputs = f(inputs);
  const Values values = flat(outputs);
  const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  if (!std::ranges::equal(values, flat(f(inputs)), same)) return {false, "a second call gives other outputs"};
  const std::vector<Values> all = probes(values.size());
  std::vector<Tensors> by_probe;
  for (const Values& probe : all) by_probe.push_back(analytic(outputs, inputs, probe));
  for (std::size_t i = 0, k = 0; i < inputs.size(); ++i) {
    if (!wanted(inputs[i])) continue;
    Tensors gradients_of;
    for (const Tensors& g : by_probe) gradients_of.push_back(g[k]);
    ++k;
    const std::string problem = compare(f, inputs, i, gradients_of, all, o);
    if (!problem.empty()) return {false, problem};
  }
  return {};
}

void check_inputs(const char* who, const Tensors& inputs) {
  if (std::ranges::none_of(inputs, wanted)) fail(std::string(who) + ": no input requires a gradient");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (wanted(inputs[i]) && inputs[i].dtype() != DType::f64)
      failf("{}: input {} is {}; differences need f64", who, i, name(inputs[i].dtype()));
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
  for (const Tensor& t : all_wanted(f(leaves(inputs))))
    all.push_back(randn(t.sizes(), {.dtype = t.dtype(), .requires_grad = true}, g));
  const auto count = static_cast<std::ptrdiff_t>(inputs.size());
  const CheckedFunction gradient = [&f, count](const Tensors& at) {
    const Tensors own(at.begin(), at.begin() + count);
    return gradients(f(own), own, {at.begin() + count, at.end()}, {.create_graph = true, .allow_unused = true});
  };
  return checked(gradient, all, options);
}

}  // namespace gradual::autograd
