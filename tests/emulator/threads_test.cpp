// What the emulator shows of kernels and streams that are wrong (cuda/emulator/fibers.cpp, streams.cpp).
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include <gradual/core/support/error.h>
#include "../../cuda/emulator/cuda_runtime.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__  // as g++ says it
#endif
#endif
#ifdef __SANITIZE_THREAD__
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <thread>
#endif

namespace gradual::cuda::emulator {
namespace {

void launch(unsigned blocks, unsigned threads, bool together, const std::function<void()>& kernel) {
  emulator::launch(blocks, threads, together, nullptr, kernel);
}
// What two launches in a row gave, the smaller first: they run in unlike orders.
template <class F> auto of_two(const F& f) {
  auto a = f();
  auto b = f();
  return std::pair(std::min(a, b), std::max(a, b));
}

TEST_CASE("a missing barrier shows in one of two launches") {
  for (const bool meets : {false, true})
    for (const unsigned writer : {0u, 63u}) {
      CAPTURE(meets);
      CAPTURE(writer);
      const auto readers = of_two([&] {
        std::atomic<int> shared = 0;
        std::atomic<int> seen = 0;
        launch(1, 64, true, [&] {
          if (threadIdx.x == writer) shared = 1;
          if (meets) __syncthreads();
          seen += shared;
        });
        return seen.load();
      });
      CHECK(readers == (meets ? std::pair(64, 64) : std::pair(1, 64)));
    }
}

TEST_CASE("every second launch runs blocks and threads backwards") {
  for (const bool together : {false, true}) {
    const auto order = of_two([&] {
      std::vector<unsigned> all(6);
      std::atomic<std::size_t> next = 0;
      launch(3, 2, together, [&] { all.at(next++) = 10 * blockIdx.x + threadIdx.x; });
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
    std::atomic<int> met = 0;
    launch(1, 64, true, [&] {
      __syncthreads();
      ++met;
    });
    CHECK(met == 64);
  }
}

#ifdef __SANITIZE_THREAD__
__shared__ unsigned shared[64];
unsigned results[64];

void mirror(bool meets_before, bool meets_after) {
  for (int round = 0; round < 3; ++round) {
    shared[threadIdx.x] = threadIdx.x;
    if (meets_before) __syncthreads();
    results[threadIdx.x] += shared[63 - threadIdx.x];
    if (meets_after) __syncthreads();
  }
}

// Streams and events as the library has them.
struct Streams {
  cudaStream_t a = nullptr;
  cudaStream_t b = nullptr;
  cudaEvent_t event = nullptr;
  ~Streams() {
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
    cudaEventDestroy(event);
  }
  Streams() {
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreate(&event);
  }
  static void write(cudaStream_t stream) {
    emulator::launch(1, 64, false, stream, [] { results[threadIdx.x] = threadIdx.x; });
  }
};

struct Case {
  const char* name;
  bool races;
  void (*run)();
};
const Case cases[] = {
    {"barriers before and after", false, [] { launch(2, 64, true, [] { mirror(true, true); }); }},
    {"read before all have written", true, [] { launch(2, 64, true, [] { mirror(false, true); }); }},
    {"written before all have read", true, [] { launch(1, 64, true, [] { mirror(true, false); }); }},
    {"an exchange orders nothing", true,
     [] {
       launch(1, 64, true, [] {
         shared[threadIdx.x] = 1;
         results[threadIdx.x] = __shfl_xor_sync(~0u, threadIdx.x, 1);
         results[threadIdx.x] += shared[threadIdx.x ^ 1];
       });
     }},
    {"each thread its own", false, [] { launch(1, 64, false, [] { results[threadIdx.x] = 1; }); }},
    {"two threads, one place", true, [] { launch(1, 64, false, [] { results[threadIdx.x / 2] = 1; }); }},
    {"two blocks, one place", true, [] { launch(2, 64, false, [] { results[(threadIdx.x + blockIdx.x) % 64] = 1; }); }},
    {"every block writes to the first places", true,
     [] { launch(2, 64, false, [] { results[threadIdx.x] = blockIdx.x; }); }},
    {"two blocks, one place, atomic", false, [] { launch(2, 64, false, [] { atomicAdd(&results[0], 1u); }); }},
    {"one launch after another", false,
     [] {
       const Streams s;
       Streams::write(s.a);
       Streams::write(s.a);
     }},
    {"the host waits", false,
     [] {
       const Streams s;
       Streams::write(s.a);
       cudaStreamSynchronize(s.a);
       ++results[0];
     }},
    {"the host does not wait", true,
     [] {
       const Streams s;
       Streams::write(s.a);
       ++results[0];
     }},
    {"the stream is gone, but was not waited for", true,
     [] {
       { Streams::write(Streams().a); }
       ++results[0];
     }},
    {"the host waits for an event before", true,
     [] {
       const Streams s;
       cudaEventRecord(s.event, s.a);
       Streams::write(s.a);
       cudaEventSynchronize(s.event);
       ++results[0];
     }},
    {"a buffer is filled while it is copied from", true,
     [] {
       const Streams s;
       cudaMemcpyAsync(results, shared, sizeof results, cudaMemcpyDefault, s.a);
       shared[0] = 1;
     }},
    {"two streams", true,
     [] {
       const Streams s;
       Streams::write(s.a);
       Streams::write(s.b);
     }},
    {"two streams, an event between", false,
     [] {
       const Streams s;
       Streams::write(s.a);
       cudaEventRecord(s.event, s.a);
       cudaStreamWaitEvent(s.b, s.event, 0);
       Streams::write(s.b);
     }},
    {"the host waits for a stream that waited", false,
     [] {
       const Streams s;
       Streams::write(s.a);
       cudaEventRecord(s.event, s.a);
       cudaStreamWaitEvent(s.b, s.event, 0);
       cudaStreamSynchronize(s.b);
       ++results[0];
     }},
    {"an event that was recorded again", true,
     [] {
       const Streams s;
       Streams::write(s.a);
       cudaEventRecord(s.event, s.a);
       cudaEventRecord(s.event, s.b);
       cudaEventSynchronize(s.event);
       ++results[0];
     }},
    {"a graph on two streams", false,
     [] {
       const Streams s;
       cudaGraph_t graph = nullptr;
       cudaGraphExec_t run = nullptr;
       cudaStreamBeginCapture(s.a, cudaStreamCaptureModeRelaxed);
       Streams::write(s.a);
       cudaStreamEndCapture(s.a, &graph);
       cudaGraphInstantiate(&run, graph, 0);
       cudaGraphLaunch(run, s.a);
       cudaGraphLaunch(run, s.b);
       cudaDeviceSynchronize();
       ++results[0];
     }},
    {"two threads and their streams run one kernel", false,
     [] {
       const Streams s;
       static unsigned of_each[2];
       const auto sum = [](cudaStream_t stream, unsigned* result) {
         emulator::launch(1, 64, true, stream, [=] {
           shared[threadIdx.x] = threadIdx.x;
           __syncthreads();
           if (threadIdx.x == 0) *result = shared[63];
         });
       };
       std::thread other([&] { sum(s.a, &of_each[0]); });
       sum(s.b, &of_each[1]);
       other.join();
     }},
    {"two threads, and taking turns orders nothing", true,
     [] {
       const Streams s;
       std::thread other([&] {
         results[0] = 1;
         Streams::write(s.a);
       });
       cudaMemsetAsync(shared, 0, sizeof shared, s.b);
       ++results[0];
       other.join();
     }},
    {"freed by another stream", true,
     [] {
       const Streams s;
       void* block = nullptr;
       cudaMallocAsync(&block, 64, s.a);
       cudaMemsetAsync(block, 0, 64, s.a);
       cudaFreeAsync(block, s.b);
     }},
};

TEST_CASE("the case that GRADUAL_TEST_RACE names" * doctest::skip()) {
  const char* const name = std::getenv("GRADUAL_TEST_RACE");
  REQUIRE(name);
  const Case* const found =
      std::find_if(std::begin(cases), std::end(cases), [&](const Case& c) { return std::string(name) == c.name; });
  REQUIRE(found != std::end(cases));
  found->run();
}

// In a process of its own each, for what ThreadSanitizer reports ends a test.
TEST_CASE("ThreadSanitizer finds what kernels and streams leave to chance") {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const Case& c : cases) {
    CAPTURE(std::string(c.name));
    const std::string command = std::string("GRADUAL_TEST_RACE='") + c.name + "' '" + program +
                                "' --no-skip -tc='the case that*' >/dev/null 2>&1";
    const int status = std::system(command.c_str());
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == (c.races ? 66 : 0));
  }
}
#endif

}  // namespace
}  // namespace gradual::cuda::emulator
