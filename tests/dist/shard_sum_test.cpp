#include <doctest/doctest.h>
#include <gradual/dist/shard_sum.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "dist/thread_ranks.h"
#include "support/files.h"

using namespace gradual;
using namespace gradual::dist;
using test::message_of;

namespace {

// Numbers whose sum depends on the order.
template <class T> std::vector<T> numbers(int shard, std::size_t n) {
  std::vector<T> out(n);
  for (std::size_t i = 0; i < n; ++i)
    out[i] = static_cast<T>((shard % 3 == 0 ? 1e6 : 1e-3) * (1.0 + 0.37 * shard) * (i % 2 ? -1.0 : 1.0) /
                            (1.0 + static_cast<double>(i)));
  return out;
}

template <class T> std::vector<T> sum_on(int ranks, int shards, std::size_t n) {
  std::vector<std::vector<T>> sums(static_cast<std::size_t>(ranks));
  run_threads(ranks, [&](Communicator& c) {
    TreeSum<T> own;
    const Range mine = part_of(shards, ranks, c.rank());
    for (std::int64_t k = mine.first; k < mine.last; ++k)
      own.add(0, static_cast<int>(k), numbers<T>(static_cast<int>(k), n));
    sums[static_cast<std::size_t>(c.rank())] = sum_shards(c, shards, std::move(own));
  });
  for (const auto& s : sums) REQUIRE(std::memcmp(s.data(), sums[0].data(), n * sizeof(T)) == 0);
  return sums[0];
}

template <class T> void same_bits_on_any_number() {
  for (const int shards : {1, 2, 3, 6, 7, 8, 13, 32})
    for (const std::size_t n : {1u, 5u, 1000u}) {
      const std::vector<T> one = sum_on<T>(1, shards, n);
      for (int ranks = 2; ranks <= std::min(shards, 9); ++ranks) {
        CAPTURE(shards);
        CAPTURE(ranks);
        CAPTURE(n);
        const std::vector<T> some = sum_on<T>(ranks, shards, n);
        CHECK(std::memcmp(one.data(), some.data(), n * sizeof(T)) == 0);
      }
    }
}

}  // namespace

TEST_CASE("a sum over shards has the same bits on any number of ranks") {
  same_bits_on_any_number<float>();
  same_bits_on_any_number<double>();
  // the tree, not the order from left to right
  std::vector<float> by_hand;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto x = [&](int k) { return numbers<float>(k, 4)[i]; };
    by_hand.push_back(((x(0) + x(1)) + (x(2) + x(3))) + (x(4) + x(5)));
  }
  CHECK(sum_on<float>(3, 6, 4) == by_hand);
}

TEST_CASE("parts of shards and samples cover them once") {
  for (const std::int64_t n : {0, 1, 7, 8, 64, 1437})
    for (const std::int64_t parts : {1, 3, 8}) {
      std::int64_t at = 0;
      for (std::int64_t k = 0; k < parts; ++k) {
        CHECK(part_of(n, parts, k).first == at);
        at = part_of(n, parts, k).last;
        CHECK(part_of(n, parts, k).size() - n / parts <= 1);
      }
      CHECK(at == n);
    }
}

TEST_CASE("collective calls of a communicator") {
  for (const int n : {1, 2, 3, 4}) {
    CAPTURE(n);
    run_threads(n, [&](Communicator& c) {
      const int r = c.rank();
      int number = r == n - 1 ? 42 : 0;
      c.broadcast(&number, sizeof number, n - 1);
      REQUIRE(number == 42);
      std::vector<int> all(static_cast<std::size_t>(n));
      std::vector<int> to(all.size());
      std::vector<int> from(all.size());
      c.all_gather(&r, sizeof r, all.data());
      for (int p = 0; p < n; ++p) REQUIRE(all[static_cast<std::size_t>(p)] == p);
      for (int p = 0; p < n; ++p) to[static_cast<std::size_t>(p)] = 10 * r + p;
      const auto under_way = c.start_all_to_all(to.data(), sizeof(int), from.data());
      const std::vector<std::string> texts = c.all_gather(std::string(static_cast<std::size_t>(3 * r), 'x'));
      under_way->wait();
      for (int p = 0; p < n; ++p) REQUIRE(from[static_cast<std::size_t>(p)] == 10 * p + r);
      for (int p = 0; p < n; ++p) REQUIRE(texts[static_cast<std::size_t>(p)].size() == static_cast<std::size_t>(3 * p));
      std::vector<float> values(7, static_cast<float>(r + 1));
      c.all_reduce(values);
      for (const float v : values) REQUIRE(v == static_cast<float>(n * (n + 1) / 2));
      REQUIRE(c.any(r == n - 1));
      REQUIRE_FALSE(c.any(false));
    });
  }
}

TEST_CASE("a rank that fails ends the others, and ranks that differ are reported") {
  std::atomic<int> ended{0};
  const std::string message = message_of([&] {
    run_threads(3, [&](Communicator& c) {
      if (c.rank() == 1) throw_error("out of paper");
      try {
        c.barrier();
      } catch (const Error&) {
        ++ended;
        throw;
      }
    });
  });
  CHECK(message == "out of paper");
  CHECK(ended == 2);
  CHECK(message_of([] {
          run_threads(3, [](Communicator& c) {
            check_same(c, {{"the version", "1"}, {"the recipe", c.rank() == 2 ? "amp-fp16" : "fp32"}});
          });
        }) == "the ranks differ in the recipe: ranks 0 and 1 have 'fp32', rank 2 has 'amp-fp16'");
}
