// Whether layers use fused rows: linear_relu for linear and relu, and so on.
#pragma once

#include "../support/scoped.h"

namespace gradual {

// True unless a scope of this thread says otherwise.
inline bool& fused_rows() {
  thread_local bool on = true;
  return on;
}

// While it lives, layers run the parts of fused rows one by one, and an optimizer updates one parameter a call: for those who
// want to see what passes between them. On the CPU the numbers are the same bits.
struct UnfusedScope : Scoped<bool> {
  UnfusedScope() : Scoped(fused_rows(), false) {}
};

}  // namespace gradual
