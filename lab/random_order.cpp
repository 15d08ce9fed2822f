#include "random_order.h"

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "../core/ops/ops.h"

namespace gradual::lab {
namespace {

Tensor as_index(const std::vector<std::int64_t>& order) {
  return from_data(order, {static_cast<std::int64_t>(order.size())}, {.dtype = DType::i64});
}

}  // namespace

Tensor random_order(std::int64_t n, std::mt19937_64& random) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return as_index(order);
}

Tensor inverse_order(const Tensor& order) {
  const auto places = order.to_vector<std::int64_t>();
  std::vector<std::int64_t> back(places.size());
  for (std::size_t i = 0; i < places.size(); ++i)
    back[static_cast<std::size_t>(places[i])] = static_cast<std::int64_t>(i);
  return as_index(back);
}

}  // namespace gradual::lab
