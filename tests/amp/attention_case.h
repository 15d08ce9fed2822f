// What attention's tests attend to.
#pragma once

#include <cmath>

#include "../../nn/attention.h"
#include "support.h"

namespace gradual::attention_test {

struct Case {
  const char* what;
  Shape q, k, v;
  Tensor mask = {};
  AttentionOptions options = {};
};

inline Tensor visible(const Shape& sizes) { return gt(random(sizes, 77), -0.5); }
inline Tensor hides_all_of_row(int row) {
  const Tensor mask = random({5, 9}, 78);
  mask.narrow(0, row, 1).fill_(-HUGE_VAL);
  return mask;
}

}  // namespace gradual::attention_test
