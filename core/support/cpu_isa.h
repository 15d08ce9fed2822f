// The vector instructions that kernels use. One binary holds loops for several instruction sets and picks one at run
// time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

namespace gradual {

// Each includes those before it. avx2: AVX2, FMA and F16C. avx512: also AVX-512 F, BW, DQ and VL, and BF16 if the
// processor has it. amx: also AMX for bf16, if the system allows it, and AVX512-BF16. amx equals avx512 except for bf16
// products and the choice of oneDNN's function for large f32 products.
enum class CpuIsa : std::uint8_t { baseline, avx2, avx512, amx };
std::string_view to_string(CpuIsa isa);

// The instruction sets that the library contains and the processor supports, slowest first. None below the build's
// minimum.
std::vector<CpuIsa> cpu_isas();

namespace detail {
inline constexpr int kNoIsa = -1;
extern constinit std::atomic<int> current_isa;
CpuIsa choose_isa();
}  // namespace detail

// The one in use: the fastest, or the one named by the environment variable GRADUAL_CPU_ISA at the first call (Error if
// cpu_isas() lacks it). All give the same bits, except matrix products, whose sums have another order in each, and the
// choice among several NaNs in a sum.
inline CpuIsa cpu_isa() {
  const int isa = detail::current_isa.load(std::memory_order_relaxed);
  return isa != detail::kNoIsa ? static_cast<CpuIsa>(isa) : detail::choose_isa();
}

// Sets it for the whole process, for tests and measurements. Returns the previous one. Error if cpu_isas() lacks it.
CpuIsa set_cpu_isa(CpuIsa isa);

}  // namespace gradual
