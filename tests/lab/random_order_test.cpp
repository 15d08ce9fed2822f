#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/random_order.h>

#include <cstdint>
#include <random>
#include <vector>

using namespace gradual;

TEST_CASE("random_order: each place once, the same from the same numbers, and inverse_order undoes it") {
  using Places = std::vector<std::int64_t>;
  std::mt19937_64 random(1);
  const Tensor order = lab::random_order(6, random);
  // Bounds of a step and other orders of it depend on these draws.
  CHECK(order.to_vector<std::int64_t>() == Places{1, 3, 0, 4, 5, 2});
  std::mt19937_64 drawn(1);
  drawn.discard(5);
  CHECK(random == drawn);

  const Tensor there = index_select(arange(0, 6), 0, order);
  CHECK(index_select(there, 0, lab::inverse_order(order)).to_vector<float>() == arange(0, 6).to_vector<float>());
  CHECK(lab::random_order(1, random).to_vector<std::int64_t>() == Places{0});
  CHECK(lab::random_order(0, random).numel() == 0);
}
