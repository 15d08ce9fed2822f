#include "cast_counts.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "../../core/formats/cast_counts.h"
#include "../../core/kernels/loops.h"
#include "../../core/tensor/device.h"
#include "runtime.h"

namespace gradual::cuda {

namespace {
constexpr std::size_t kFields = sizeof(CastCounts) / sizeof(std::uint64_t);
static_assert(kFields == Counter::kInf + 1 && std::is_trivially_copyable_v<CastCounts>);
}  // namespace

CountingStores::CountingStores(DType from, DType to, int tensors)
    : into_(cpu::counts_for(from, to)), tensors_(tensors) {
  if (!into_) return;
  const std::size_t bytes = static_cast<std::size_t>(std::max(tensors, 1)) * sizeof(CastCounts);
  memory_.emplace(bytes);
  counter_.counts = memory_->as<unsigned long long>();
  clear(counter_.counts, bytes);
  if (is_floating(to)) counter_.min_normal = float_info(to).min_normal;
  else if (to == DType::i64) {
    counter_.beyond = 0x1p63;
    counter_.least = -0x1p63;
  } else if (to == DType::i32) {
    counter_.beyond = 0x1p31;
    counter_.least = -0x1p31;
  } else if (to == DType::u8) counter_.beyond = 256;
}

CountingStores::~CountingStores() noexcept(false) {
  if (!into_ || std::uncaught_exceptions() > thrown_) return;  // after an error, counts are not wanted
  std::vector<CastCounts> each(static_cast<std::size_t>(std::max(tensors_, 1)));
  device::copy(each.data(), Device::cpu(), counter_.counts, Device::cuda(current_device()),
               each.size() * sizeof(CastCounts));
  if (tensors_ > 0) add_cast_counts(each);
  else cpu::merge_counts(into_, each[0]);
}

}  // namespace gradual::cuda
