// How many threads may be asked for.
#include <doctest/doctest.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/threads.h>

using namespace gradual;

TEST_CASE("as many threads as OpenMP survives are allowed, and no more") {
  const ThreadsScope saved(num_threads());
  for (const int n : {-1, 0, kMostThreads + 1, 100000})
    CHECK_THROWS_WITH_AS(set_num_threads(n), doctest::Contains("it must be 1 to 4096"), Error);
  CHECK(num_threads() <= kMostThreads);
  set_num_threads(3);
  CHECK(num_threads() >= 1);
}
