#include <cub/device/device_radix_sort.cuh>

#include "../kernels/sort.h"
#include "../runtime/memory.h"
#include "../runtime/runtime.h"

namespace gradual::cuda {

void sort_pairs(std::int64_t n, int bits, const std::int64_t* keys, std::int64_t* sorted_keys,
                const std::int64_t* values, std::int64_t* sorted_values) {
  const auto sort = [&](void* scratch, std::size_t& bytes) {
    check(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted_keys, values, sorted_values, n, 0, bits,
                                          current_stream()),
          "cub::DeviceRadixSort::SortPairs");
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);  // asks for the size
  const Workspace scratch(bytes + 1);
  sort(scratch.as<void>(), bytes);
}

}  // namespace gradual::cuda
