// Steps of one op and their bounds, for the tests of judge().
#pragma once

#include <gradual/core/ops/derived_ops.h>
#include <gradual/core/ops/ops.h>
#include <gradual/pt2/executor.h>

#include <memory>
#include <utility>
#include <vector>

namespace test {

inline gradual::pt2::Step step_of(const char* target, std::vector<gradual::pt2::Value> arguments) {
  auto op = std::make_shared<gradual::pt2::Op>();
  op->target = target;
  gradual::pt2::Step step;
  step.op = op;
  step.arguments = std::move(arguments);
  return step;
}

// The largest of |got - exact| over the bound; 0 where both are 0.
inline double share_of_bound(const gradual::Tensor& got, const gradual::Tensor& exact, const gradual::Tensor& bound) {
  const gradual::Tensor away = abs(got.to(gradual::DType::f64) - exact);
  return max(where(eq(away, 0), 0, away / bound)).item();
}

}  // namespace test
