// The CPU backends that this build has, the reference first.
#pragma once

#include <gradual/core/ops/cpu_backend.h>

#include <vector>

namespace gradual::testing {

inline std::vector<CpuBackend> cpu_backends() {
  std::vector<CpuBackend> all{CpuBackend::eigen};
  if (has_fast()) all.push_back(CpuBackend::fast);
  if (has_onednn()) all.push_back(CpuBackend::onednn);
  return all;
}

}  // namespace gradual::testing
