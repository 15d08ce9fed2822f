#include "cpu_backend.h"

#include <atomic>

#include "../support/error.h"
#include "dispatch.h"

namespace gradual {
namespace {

#ifdef GRADUAL_HAVE_ONEDNN
constexpr CpuBackend kDefault = CpuBackend::onednn;
#else
constexpr CpuBackend kDefault = CpuBackend::eigen;
#endif
std::atomic<CpuBackend> backend_now{kDefault};
std::atomic<bool> deterministic_now{false};

}  // namespace

std::string_view name(CpuBackend backend) { return backend == CpuBackend::eigen ? "eigen" : "onednn"; }

bool has_onednn() { return kDefault == CpuBackend::onednn; }

std::string_view onednn_description() {
  ensure_registered();
  if (columns().onednn_description) return columns().onednn_description();
  return "not built with oneDNN (Debian: libdnnl-dev; CMake: GRADUAL_ONEDNN=ON)";
}

void set_cpu_backend(CpuBackend backend) {
  if (backend == CpuBackend::onednn && !has_onednn())
    fail("set_cpu_backend: " + std::string(onednn_description()) + "; eigen is allowed");
  backend_now.store(backend, std::memory_order_relaxed);
}
CpuBackend cpu_backend() { return backend_now.load(std::memory_order_relaxed); }

void set_deterministic(bool on) { deterministic_now.store(on, std::memory_order_relaxed); }
bool deterministic() { return deterministic_now.load(std::memory_order_relaxed); }

}  // namespace gradual
