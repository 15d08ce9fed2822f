// Selects the CPU backend of products and convolutions, and deterministic mode.
#pragma once

#include <cstdint>
#include <string_view>

#include "../support/scoped.h"

namespace gradual {

// eigen: the reference; runs everywhere. fast: a kernel for this processor (core/cpu/fast) if one suits the call, else
// the reference. onednn: as fast, with oneDNN's JIT kernels before the reference. All multiply exactly and sum in f32,
// in different orders (docs/architecture.md has the bound). eigen and fast have the same bits for any number of
// threads.
enum class CpuBackend : std::uint8_t { eigen, fast, onednn };
std::string_view to_string(CpuBackend backend);

// Sets it for the whole process. The default is the last one that the library was built with. Error if it lacks
// `backend`.
void set_cpu_backend(CpuBackend backend);
CpuBackend cpu_backend();
bool has_onednn();
bool has_fast();  // CMake: GRADUAL_FAST
// "oneDNN 2.6.3, avx512_core_bf16", or the reason why there is none.
std::string_view onednn_description();

// On: oneDNN too gives the same bits for any number of threads; products are cut by their shape alone. Set for the
// whole process. Off (the default): the same bits from run to run, for a fixed number of threads.
void set_deterministic(bool on);
bool deterministic();

// Sets the backend while it lives, for tests and comparisons. Not for several threads at once.
class CpuBackendScope : Pinned {
 public:
  explicit CpuBackendScope(CpuBackend backend) : saved_(cpu_backend()) { set_cpu_backend(backend); }
  ~CpuBackendScope() { set_cpu_backend(saved_); }

 private:
  CpuBackend saved_;
};

}  // namespace gradual
