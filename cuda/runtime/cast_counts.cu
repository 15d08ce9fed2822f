#include "cast_counts.h"

#include "../../core/kernels/loops.h"
#include "../../core/tensor/device.h"
#include "runtime.h"

namespace gradual::cuda {

namespace {
constexpr std::size_t kFields = sizeof(CastCounts) / sizeof(std::uint64_t);
static_assert(kFields == Counter::kInf + 1);
}  // namespace

CountingStores::CountingStores(DType from, DType to) : into_(cpu::counts_for(from, to)) {
  if (!into_) return;
  memory_.emplace(sizeof(CastCounts));
  counter_.counts = memory_->as<unsigned long long>();
  clear(counter_.counts, sizeof(CastCounts));
  if (is_floating(to)) counter_.min_normal = float_info(to).min_normal;
  else if (to == DType::i64) counter_.beyond = 0x1p63, counter_.least = -0x1p63;
  else if (to == DType::i32) counter_.beyond = 0x1p31, counter_.least = -0x1p31;
  else if (to == DType::u8) counter_.beyond = 256;
}

CountingStores::~CountingStores() noexcept(false) {
  if (!into_ || std::uncaught_exceptions() > thrown_) return;  // what failed is told, its counts are not wanted
  std::uint64_t fields[kFields];
  device::copy(fields, Device::cpu(), counter_.counts, Device::cuda(current_device()), sizeof fields);
  cpu::merge_counts(into_, {fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6]});
}

}  // namespace gradual::cuda
