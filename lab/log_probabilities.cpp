#include "log_probabilities.h"

#include "../core/ops/ops.h"
#include "judge_bounds.h"

namespace gradual::lab {
namespace {

constexpr double kJoins = 4;     // roundings of a term, and of the scaling of its sum
constexpr double kFunction = 8;  // units of rounding of exp and log, and of the few operations around them

}  // namespace

LogProbabilities log_probabilities(const Tensor& x, const Tensor& x_error, const Units& units) {
  const double u = units.sum;
  const Tensor error = add(or_zeros(x_error, x), mul(abs(finite(x)), units.store));
  const Tensor logarithm = logsumexp(x, {-1}, true);
  LogProbabilities all;
  all.y = sub(x, logarithm);
  all.p = exp(all.y);
  const Tensor size = add(abs(finite(x)), abs(finite(amax(x, {-1}, true))));
  // The logarithm of the row's sum: of x + error less that of x, the sum's own rounding, and those of its terms.
  Tensor of_sum = sub(logsumexp(add(x, error), {-1}, true), logarithm);
  of_sum = add(of_sum, gamma(length(x, -1) + kJoins, units.sum) + kFunction * u);
  of_sum = add(of_sum, mul(sum(mul(all.p, size), {-1}, true), 2 * u));
  all.error = add(add(error, of_sum), mul(add(size, mul(abs(finite(all.y)), 2)), 2 * u));
  all.error = where(isfinite(all.y), all.error, 0);
  all.p_error = mul(all.p, expm1(all.error));
  return all;
}

}  // namespace gradual::lab
