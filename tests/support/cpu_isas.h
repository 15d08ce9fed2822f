// For tests of code that the processor chooses.
#pragma once

#include "gradual/core/support/cpu_isa.h"

namespace reference {

// Runs body with each instruction set that there is, and puts back the one before.
template <class F> void for_each_isa(const F& body) {
  for (const gradual::CpuIsa isa : gradual::cpu_isas()) {
    const gradual::CpuIsa before = gradual::set_cpu_isa(isa);
    body(isa);
    gradual::set_cpu_isa(before);
  }
}

}  // namespace reference
