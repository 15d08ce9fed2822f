// The vector instructions that kernels use: one binary holds their loops for several, the processor decides at run time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

namespace gradual {

// Each includes those before it. avx2: AVX2, FMA and F16C; avx512: AVX-512 F, BW, DQ and VL as well, and BF16 where the processor
// has it; amx: AMX for bf16, where the system lets this process use it, and AVX512-BF16. Products in bf16 alone know amx,
// and which of oneDNN's functions computes large ones in f32.
enum class CpuIsa : std::uint8_t { baseline, avx2, avx512, amx };
std::string_view name(CpuIsa isa);

// Those that the library holds and the processor runs, slowest first. None below what the build takes for granted.
std::vector<CpuIsa> cpu_isas();

namespace detail {
inline constexpr int kNoIsa = -1;
extern constinit std::atomic<int> current_isa;
CpuIsa choose_isa();
}  // namespace detail

// The one in use: the fastest, or what the environment variable GRADUAL_CPU_ISA names when it is first asked for (error
// where cpu_isas() lacks it). All give the same bits, but for matrix products, whose sums have another order in each, and
// for which of several NaNs a sum keeps.
inline CpuIsa cpu_isa() {
  const int isa = detail::current_isa.load(std::memory_order_relaxed);
  return isa != detail::kNoIsa ? static_cast<CpuIsa>(isa) : detail::choose_isa();
}

// For the whole process from now on, for tests and measurements; returns the one before. Error where cpu_isas() lacks it.
CpuIsa set_cpu_isa(CpuIsa isa);

}  // namespace gradual
