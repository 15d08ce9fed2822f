#include "cpu_isa.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "message_text.h"
#include "multiversion.h"
#include "throwf.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace gradual {
namespace {

constexpr std::string_view kNames[] = {"baseline", "avx2", "avx512", "amx"};

#if defined(__x86_64__)
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
// __builtin_cpu_supports also asks whether the operating system saves the wide registers.
bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool runs_avx2() { return false; }
bool runs_avx512() { return false; }
#endif

#if defined(__x86_64__) && defined(__linux__)
bool asks_for_amx() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kTiles = 1U << 24;
  constexpr unsigned kBf16 = 1U << 22;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0 || (d & kBf16) == 0) return false;
  if (!runs_avx512() || !detail::has_avx512_bf16()) return false;
  // Linux saves the tiles of a process that asked for it (Documentation/arch/x86/xstate.rst).
  constexpr long kRequest = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;     // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#else
bool asks_for_amx() { return false; }
#endif

// The isa of that name among cpu_isas(); `what` asks for it.
CpuIsa find_isa(std::string_view what, std::string_view wanted) {
  const std::vector<CpuIsa> isas = cpu_isas();
  std::vector<std::string> names;
  for (const CpuIsa isa : isas) {
    if (to_string(isa) == wanted) return isa;
    names.emplace_back(to_string(isa));
  }
  const bool known = std::find(std::begin(kNames), std::end(kNames), wanted) != std::end(kNames);
  throwf("{}: {} '{}'; there are {}{}", what, known ? "this build on this processor has no" : "no instruction set",
         wanted, join(names), known ? "" : did_you_mean(wanted, names));
}

}  // namespace

constinit std::atomic<int> detail::current_isa{kNoIsa};

std::string_view to_string(CpuIsa isa) { return kNames[static_cast<int>(isa)]; }

std::vector<CpuIsa> cpu_isas() {
  std::vector<CpuIsa> isas{detail::kBuiltFor};
  if (detail::kBuiltFor < CpuIsa::avx2 && runs_avx2()) isas.push_back(CpuIsa::avx2);
  if (detail::kBuiltFor < CpuIsa::avx512 && runs_avx512()) isas.push_back(CpuIsa::avx512);
  static const bool amx = asks_for_amx();
  if (amx) isas.push_back(CpuIsa::amx);
  return isas;
}

bool detail::has_avx512_bf16() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has;
#else
  return false;
#endif
}

CpuIsa detail::choose_isa() {
  const char* const wanted = std::getenv("GRADUAL_CPU_ISA");
  const CpuIsa isa = wanted && *wanted ? find_isa("GRADUAL_CPU_ISA", wanted) : cpu_isas().back();
  int none = kNoIsa;  // another thread may have set it first
  current_isa.compare_exchange_strong(none, static_cast<int>(isa));
  return cpu_isa();
}

CpuIsa set_cpu_isa(CpuIsa isa) {
  const CpuIsa before = cpu_isa();
  detail::current_isa.store(static_cast<int>(find_isa("set_cpu_isa", to_string(isa))));
  return before;
}

}  // namespace gradual
