// Counterpart of sort_cub.cu.
#include "../kernels/sort.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "../runtime/runtime.h"
#include "stream.h"

namespace gradual::cuda {

void sort_pairs(std::int64_t n, int, const std::int64_t* keys, std::int64_t* sorted_keys, const std::int64_t* values,
                std::int64_t* sorted_values) {
  emulator::enqueue(current_stream(), [=] {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return keys[a] < keys[b]; });
    for (std::int64_t i = 0; i < n; ++i) {
      sorted_keys[i] = keys[order[static_cast<std::size_t>(i)]];
      sorted_values[i] = values[order[static_cast<std::size_t>(i)]];
    }
  });
}

}  // namespace gradual::cuda
