// Loops on several threads: each chunk runs exactly once, on any thread, whatever the workers do.
#include <doctest/doctest.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace gradual;

namespace {

// How often each of n was covered, by chunks of `grain`.
bool covers_once(std::int64_t n, std::int64_t grain) {
  std::vector<std::atomic<int>> times(static_cast<std::size_t>(n));
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; ++begin) times[static_cast<std::size_t>(begin)] += 1;
  });
  for (const std::atomic<int>& t : times)
    if (t != 1) return false;
  return true;
}

}  // namespace

TEST_CASE("every chunk of a loop runs once, on few threads and on many") {
  for (const int threads : {1, 2, 3, 16, 64}) {
    CAPTURE(threads);
    const ThreadsScope scope(threads);
    for (int i = 0; i < 200; ++i)
      for (const std::int64_t n : {0, 1, 2, 7, 100, 1000}) REQUIRE(covers_once(n, 1 + i % 9));
  }
}

TEST_CASE("several threads run chunks at the same time") {
  const ThreadsScope scope(2);
  // The caller is alone for up to a quarter of a second where a worker was late before.
  std::atomic<bool> met{false};
  for (int i = 0; i < 100 && !met; ++i) {
    std::atomic<int> inside{0};
    parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
      ++inside;
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
      while (inside < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      if (inside == 2 && std::chrono::steady_clock::now() < end) met = true;
    });
  }
  CHECK(met);
}

TEST_CASE("a loop inside a loop stays on its thread") {
  const ThreadsScope scope(4);
  std::atomic<int> total{0};
  std::atomic<int> elsewhere{0};
  parallel_for(20, 1, [&](std::int64_t, std::int64_t) {
    if (num_threads() != 1) ++elsewhere;
    const std::thread::id outer = std::this_thread::get_id();
    parallel_for(10, 1, [&](std::int64_t, std::int64_t) {
      ++total;
      if (std::this_thread::get_id() != outer) ++elsewhere;
    });
  });
  CHECK(total == 200);
  CHECK(elsewhere == 0);
  CHECK(num_threads() == 4);
}

TEST_CASE("the caller of a loop gets an exception of a chunk, and the next loop none") {
  const ThreadsScope scope(3);
  for (int i = 0; i < 50; ++i) {
    std::atomic<int> ran{0};
    CHECK_THROWS_WITH_AS(parallel_for(100, 1,
                                      [&](std::int64_t c, std::int64_t) {
                                        ++ran;
                                        if (c % 10 == 3) throw_error("chunk");
                                      }),
                         "chunk", Error);
    CHECK(num_threads() == 3);
    CHECK(covers_once(100, 1));
  }
}

TEST_CASE("threads that run loops at the same time each get theirs done") {
  const ThreadsScope scope(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t)
    callers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) wrong += !covers_once(300, 7);
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

#ifndef __SANITIZE_THREAD__
#if !defined(__has_feature)
#define __has_feature(x) 0
#endif
#if !__has_feature(thread_sanitizer)
TEST_CASE("a forked process, which has no workers, runs its loops alone") {
  const ThreadsScope scope(3);
  CHECK(covers_once(1000, 1));
  const pid_t child = fork();
  if (child == 0) _exit(covers_once(1000, 1) ? 7 : 1);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}
#endif
#endif
