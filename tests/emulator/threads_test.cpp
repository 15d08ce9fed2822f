// What the emulator shows of kernels that are wrong (cuda/emulator/fibers.cpp).
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <gradual/core/error.h>
#include "../../cuda/emulator/cuda_runtime.h"

namespace gradual::cuda::emulator {
namespace {

void launch(unsigned blocks, unsigned threads, bool together, const std::function<void()>& kernel) {
  emulator::launch(blocks, threads, together, nullptr, kernel);
}
// What two launches in a row gave, the smaller first: they run in unlike orders.
template <class F> auto of_two(const F& f) {
  auto a = f(), b = f();
  return std::pair(std::min(a, b), std::max(a, b));
}

TEST_CASE("a missing barrier shows in one of two launches") {
  for (const bool meets : {false, true})
    for (const unsigned writer : {0u, 63u}) {
      CAPTURE(meets);
      CAPTURE(writer);
      const auto readers = of_two([&] {
        int shared = 0, seen = 0;
        launch(1, 64, true, [&] {
          if (threadIdx.x == writer) shared = 1;
          if (meets) __syncthreads();
          seen += shared;
        });
        return seen;
      });
      CHECK(readers == (meets ? std::pair(64, 64) : std::pair(1, 64)));
    }
}

TEST_CASE("every second launch runs blocks and threads backwards") {
  for (const bool together : {false, true}) {
    const auto order = of_two([&] {
      std::vector<unsigned> all;
      launch(3, 2, together, [&] { all.push_back(10 * blockIdx.x + threadIdx.x); });
      return all;
    });
    CHECK(order.first == std::vector<unsigned>{0, 1, 10, 11, 20, 21});
    CHECK(order.second == std::vector<unsigned>{21, 20, 11, 10, 1, 0});
  }
}

TEST_CASE("values are exchanged by whole warps") {
  const auto run = [](unsigned gone) -> std::string {
    try {
      launch(1, 64, true, [&] {
        if (threadIdx.x == gone) return;
        CHECK(__shfl_xor_sync(~0u, threadIdx.x, 1) == (threadIdx.x ^ 1));
      });
    } catch (const Error& e) { return e.what(); }
    return "";
  };
  CHECK(run(64).empty());
  CHECK(run(40).find("exchange a value with one that has ended") != std::string::npos);
  CHECK(run(64).empty());
}

TEST_CASE("a thread's own error is what a launch ends in, and the next one is not touched") {
  for (int i = 0; i < 2; ++i) {  // in both orders
    CHECK_THROWS_WITH_AS(launch(1, 64, true,
                                [&] {
                                  if (threadIdx.x == 40) throw Error("thrown by thread 40");
                                  __shfl_xor_sync(~0u, threadIdx.x, 1);
                                  if (threadIdx.x < 32) __syncthreads();
                                }),
                         "thrown by thread 40", Error);
    int met = 0;
    launch(1, 64, true, [&] { __syncthreads(), ++met; });
    CHECK(met == 64);
  }
}

}  // namespace
}  // namespace gradual::cuda::emulator
