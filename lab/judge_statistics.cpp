#include "judge_statistics.h"

#include <algorithm>
#include <cstddef>

#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"

namespace gradual::lab {
namespace {

constexpr double kFewOperations = 16;  // of scaling and of joining partial sums

}  // namespace

std::vector<std::pair<int, Tensor>> running_statistics_bounds(const pt2::Step& step, const ValueTensors& inputs,
                                                              const std::vector<Tensor>& errors, const Units& units) {
  if (!step.op->target.starts_with("aten.batch_norm.")) return {};
  const auto ref = [&](std::size_t argument) { return step.arguments[argument].get<pt2::Ref>(); };
  const double* const momentum = step.arguments[6].get<double>();
  if (!ref(0) || !ref(3) || !ref(4) || !momentum) return {};
  const auto found = std::ranges::find(inputs, ref(0)->id, &std::pair<int, Tensor>::first);
  if (found == inputs.end() || found->second.numel() == 0) return {};
  const NoGrad no_grad;
  const Tensor x = found->second;
  const Tensor& error = errors[static_cast<std::size_t>(found - inputs.begin())];
  Shape dims;
  for (int d = 0; d < x.dim(); ++d)
    if (d != 1) dims.push_back(d);
  const double n = static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
  const double sums = gamma(n + kFewOperations, units.sum);
  const Tensor centred = sub(x, mean(x, dims, true));
  const Tensor size = mean(abs(centred), dims);
  Tensor of_mean = mul(mean(abs(x), dims), sums);
  if (error.defined()) of_mean = add(of_mean, mean(error, dims));
  Tensor of_variance = mul(mean(square(centred), dims), sums);
  of_variance = add(of_variance, mul(of_mean, add(mul(size, 2), of_mean)));
  if (error.defined()) of_variance = add(of_variance, mul(mean(mul(abs(centred), error), dims), 2));
  const double unbiased = n > 1 ? n / (n - 1) : 1;
  return {{ref(3)->id, mul(of_mean, *momentum)}, {ref(4)->id, mul(of_variance, *momentum * unbiased)}};
}

}  // namespace gradual::lab
