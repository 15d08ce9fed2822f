#include "cpu_backend.h"

#include <atomic>

#include "../support/error.h"
#include "dispatch.h"

namespace gradual {

#ifdef GRADUAL_HAVE_ONEDNN
constexpr bool kOneDnn = true;
#else
constexpr bool kOneDnn = false;
#endif
#ifdef GRADUAL_HAVE_FAST
constexpr bool kFast = true;
#else
constexpr bool kFast = false;
#endif
constexpr CpuBackend kDefault = kOneDnn ? CpuBackend::onednn : kFast ? CpuBackend::fast : CpuBackend::eigen;
static std::atomic<CpuBackend> backend_now{kDefault};
static std::atomic<bool> deterministic_now{false};

std::string_view to_string(CpuBackend backend) {
  switch (backend) {
    case CpuBackend::eigen: return "eigen";
    case CpuBackend::fast: return "fast";
    default: return "onednn";
  }
}

bool has_onednn() { return kOneDnn; }
bool has_fast() { return kFast; }

std::string_view onednn_description() {
  ensure_registered();
  if (columns().onednn_description) return columns().onednn_description();
  return "not built with oneDNN (Debian: libdnnl-dev; CMake: GRADUAL_ONEDNN=ON)";
}

void set_cpu_backend(CpuBackend backend) {
  if (backend == CpuBackend::onednn && !has_onednn())
    throw_error("set_cpu_backend: " + std::string(onednn_description()) +
                (has_fast() ? "; eigen and fast are allowed" : "; eigen is allowed"));
  if (backend == CpuBackend::fast && !has_fast())
    throw_error(std::string("set_cpu_backend: not built with the fast kernels (CMake: GRADUAL_FAST=ON); ") +
                (has_onednn() ? "eigen and onednn are allowed" : "eigen is allowed"));
  backend_now.store(backend, std::memory_order_relaxed);
}
CpuBackend cpu_backend() { return backend_now.load(std::memory_order_relaxed); }

void set_deterministic(bool on) { deterministic_now.store(on, std::memory_order_relaxed); }
bool deterministic() { return deterministic_now.load(std::memory_order_relaxed); }

}  // namespace gradual
