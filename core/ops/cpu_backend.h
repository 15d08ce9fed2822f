// Which library computes products, convolutions and the like on the CPU, and how repeatable its bits are.
#pragma once

#include <cstdint>
#include <string_view>

#include "../support/scoped.h"

namespace gradual {

// eigen: the readable reference; runs everywhere. fast: kernels for particular processors (core/cpu/fast) where there is one for the
// call at hand, the reference otherwise. onednn: as fast, and JIT kernels of oneDNN before the reference. All multiply exactly and
// add up in f32, in different orders (docs/architecture.md has the bound). eigen and fast have the same bits for any number of threads.
enum class CpuBackend : std::uint8_t { eigen, fast, onednn };
std::string_view name(CpuBackend backend);

// For the whole process from now on; the default is the last that the library was built with. Error where it was not.
void set_cpu_backend(CpuBackend backend);
CpuBackend cpu_backend();
bool has_onednn();
bool has_fast();  // CMake: GRADUAL_FAST
// "oneDNN 2.6.3, avx512_core_bf16", or why there is none.
std::string_view onednn_description();

// The same bits for any number of threads with oneDNN too: products are cut by their shape alone, for the process from
// now on. Off by default: the same bits from run to run, for one number of threads.
void set_deterministic(bool on);
bool deterministic();

// The backend of a block, for tests and comparisons; not for several threads at once.
class CpuBackendScope : Pinned {
 public:
  explicit CpuBackendScope(CpuBackend backend) : saved_(cpu_backend()) { set_cpu_backend(backend); }
  ~CpuBackendScope() { set_cpu_backend(saved_); }

 private:
  CpuBackend saved_;
};

}  // namespace gradual
