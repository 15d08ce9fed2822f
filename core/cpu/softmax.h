// Softmax rows, shared by softmax.cpp and cross_entropy.cpp.
#pragma once

#include <cmath>
#include <limits>

#include "../fast_math.h"
#include "../op.h"
#include "rows.h"

namespace gradual::cpu {

template <class T> T row_max(const T* x, std::int64_t n) {
  T largest = -std::numeric_limits<T>::infinity();
  for (std::int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// out = x - max - log(sum(exp(x - max))). A row that is -Inf all over gives NaN, as the quotient 0/0 would.
// exps is n elements of scratch.
template <class T> void log_softmax_row(const T* x, T* out, T* exps, std::int64_t n) {
  const T largest = row_max(x, n);
  for (std::int64_t i = 0; i < n; ++i) exps[i] = math::exp(x[i] - largest);
  const T log_sum = math::log(blocked_sum<T>(n, [&](std::int64_t i) { return exps[i]; }));
  for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] - largest - log_sum;
}

void softmax(const OpCall& call, Outputs& out);
void softmax_backward(const OpCall& call, Outputs& out);
void log_softmax(const OpCall& call, Outputs& out);
void log_softmax_backward(const OpCall& call, Outputs& out);

}  // namespace gradual::cpu
