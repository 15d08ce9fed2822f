#include "gradcheck.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "autograd.h"

namespace gradual::autograd {
namespace {

using Tensors = std::vector<Tensor>;
using Values = std::vector<double>;

constexpr std::int64_t kWholeJacobian = 100;  // up to this many outputs every row is checked
constexpr std::int64_t kProjections = 4;

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

// The elements of all floating outputs, one after another, on the CPU.
Tensor flat(const Tensors& outputs) {
  Tensors parts{empty({0}, {.dtype = DType::f64})};
  for (const Tensor& t : outputs)
    if (t.defined() && t.is_floating()) parts.push_back(reshape(cast(t, DType::f64), {-1}).to(Device::cpu()));
  return cat(parts, 0);
}

// Rows to multiply the Jacobian with from the left.
Tensor probes(std::int64_t outputs) {
  if (outputs <= kWholeJacobian) return eye(outputs, {.dtype = DType::f64});
  Generator g(0x9e3779b9);
  return randn({kProjections, outputs}, {.dtype = DType::f64}, g);
}

// f's outputs with one element of one input shifted.
Tensor moved(const CheckedFunction& f, const Tensors& inputs, std::size_t input, std::size_t element, double by) {
  Tensors at = leaves(inputs);
  Values v = at[input].to_vector<double>();
  v[element] += by;
  at[input] =
      from_data(v, at[input].sizes(), {.dtype = DType::f64, .device = at[input].device(), .requires_grad = true});
  return flat(f(at)).detach();
}

// Describes an error in the gradients of one input (one per row of `all`); empty if there is none.
std::string compare(const CheckedFunction& f, const Tensors& inputs, std::size_t input, const Tensors& gradients,
                    const Tensor& all, const GradcheckOptions& o) {
  const Tensor& x = inputs[input];
  std::vector<Values> got;
  for (const Tensor& g : gradients) got.push_back((g.defined() ? g : zeros_like(x)).to_vector<double>());
  for (std::size_t e = 0; e < static_cast<std::size_t>(x.numel()); ++e) {
    const Tensor slope = (moved(f, inputs, input, e, o.eps) - moved(f, inputs, input, e, -o.eps)) / (2 * o.eps);
    const Values want = matmul(all, slope).to_vector<double>();
    for (std::size_t p = 0; p < want.size(); ++p) {
      if (std::fabs(got[p][e] - want[p]) <= o.atol + o.rtol * std::fabs(want[p])) continue;  // NaN fails
      return fmt::format("input {}, element {} of {}, output {}: analytic {:.9g}, numeric {:.9g}{}", input, e,
                         to_string(x.sizes()), p, got[p][e], want[p],
                         gradients[p].defined() ? "" : " (the tape has no path to this input)");
    }
  }
  return "";
}

GradcheckResult checked(const CheckedFunction& f, const Tensors& given, const GradcheckOptions& o) {
  const Tensors inputs = leaves(given);
  const Tensors into = all_wanted(inputs);
  const Tensor y = flat(f(inputs));
  const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  if (!std::ranges::equal(y.to_vector<double>(), flat(f(inputs)).to_vector<double>(), same))
    return {false, "a second call gives other outputs"};
  const Tensor all = probes(y.numel());
  std::vector<Tensors> by_input(into.size());
  for (std::int64_t p = 0; p < all.size(0); ++p) {
    const Tensors row = y.requires_grad()
                            ? grad({y}, into, {select(all, 0, p)}, {.retain_graph = true, .allow_unused = true})
                            : Tensors(into.size());
    for (std::size_t k = 0; k < row.size(); ++k) by_input[k].push_back(row[k]);
  }
  for (std::size_t i = 0, k = 0; i < inputs.size(); ++i) {
    if (!wanted(inputs[i])) continue;
    if (const std::string problem = compare(f, inputs, i, by_input[k++], all, o); !problem.empty())
      return {false, problem};
  }
  return {};
}

void check_inputs(const char* who, const CheckedFunction& f, const Tensors& inputs, double eps) {
  if (!f) throwf("{}: the function is null", who);
  if (!(eps > 0 && std::isfinite(eps))) throwf("{}: eps is {}; it must be positive and finite", who, eps);
  if (std::ranges::none_of(inputs, wanted)) throwf("{}: no input requires a gradient", who);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (wanted(inputs[i]) && inputs[i].dtype() != DType::f64)
      throwf("{}: input {} is {}; differences need f64", who, i, to_string(inputs[i].dtype()));
}

}  // namespace

GradcheckResult gradcheck(const CheckedFunction& f, const std::vector<Tensor>& inputs, GradcheckOptions options) {
  check_inputs("gradcheck", f, inputs, options.eps);
  return checked(f, inputs, options);
}

GradcheckResult gradgradcheck(const CheckedFunction& f, const std::vector<Tensor>& inputs, GradcheckOptions options) {
  check_inputs("gradgradcheck", f, inputs, options.eps);
  // The gradients of the outputs are inputs too. They are random, because a wrong rule may be right for ones.
  Generator g(0x7f4a7c15);
  Tensors all = inputs;
  for (const Tensor& t : all_wanted(f(leaves(inputs))))
    all.push_back(randn(t.sizes(), {.dtype = t.dtype(), .device = t.device(), .requires_grad = true}, g));
  const auto count = static_cast<std::ptrdiff_t>(inputs.size());
  const CheckedFunction gradient = [&f, count](const Tensors& at) {
    const Tensors own(at.begin(), at.begin() + count);
    return grad(all_wanted(f(own)), all_wanted(own), {at.begin() + count, at.end()},
                {.create_graph = true, .allow_unused = true});
  };
  return checked(gradient, all, options);
}

}  // namespace gradual::autograd
