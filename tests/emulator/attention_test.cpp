// Our calls of cuDNN for attention, by way of its emulator.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <gradual/cuda/runtime/graph.h>
#include <gradual/gradual.h>
#include "../../cuda/kernels/attention.h"
#include "support/gpu.h"

namespace gradual {
namespace {

using namespace test;

struct Case {
  std::int64_t batch, heads, queries;
  std::size_t parts;  // at most
};
const Case kCases[] = {{1, 1, 8, 1},
                       {3, 1, 8, 3},
                       {1, 5, 8, 5},
                       {3, 2, 8, 6},
                       // logsumexps of parts that begin at no multiple of 16 bytes
                       {2, 3, 5, 6},
                       {1, 9, 5, 9},
                       {9, 1, 5, 9}};

}  // namespace

TEST_CASE("attention's backward is split if it needs much scratch memory, with the same bits") {
  for (const Case& c : kCases) {
    CAPTURE(c.batch);
    CAPTURE(c.heads);
    CAPTURE(c.queries);
    constexpr std::int64_t kKeys = 7;
    constexpr std::int64_t kSize = 8;
    // heads as a projection gives them
    const auto heads = [&](std::int64_t length, std::uint64_t seed) {
      return transpose(drawn({c.batch, length, c.heads, kSize}, seed, DType::bf16).to(kGpu), 1, 2);
    };
    cuda::Attention a{.causal = true,
                      .scale = 0.5,
                      .q = heads(c.queries, 1),
                      .k = heads(kKeys, 2),
                      .v = heads(kKeys, 3),
                      .y = heads(c.queries, 4),
                      .logsumexp = zeros({c.batch, c.heads, c.queries, 1}, {.device = kGpu})};
    REQUIRE(cuda::attend(a));
    const auto gradients = [&](std::int64_t most_scratch, std::size_t calls) {
      a.dy = heads(c.queries, 5);
      a.dq = heads(c.queries, 6);
      a.dk = heads(kKeys, 7);
      a.dv = heads(kKeys, 8);
      a.most_scratch = most_scratch;
      auto names = kernels_of([&] { CHECK(cuda::attend(a)); });
      std::erase(names, "cudaMemcpyAsync");  // of logsumexps
      CHECK(names == std::vector<std::string>(calls, "cuDNN attention, backward"));
      return std::vector<std::vector<double>>{numbers(a.dq), numbers(a.dk), numbers(a.dv)};
    };
    const auto whole = gradients(1 << 20, 1);
    CHECK(gradients(1, c.parts) == whole);
    CHECK(whole[0] != numbers(heads(c.queries, 6)));
  }
}

// A thread forgets plans when there are many, and each takes its kernels with it.
TEST_CASE("a graph keeps the plans of what it recorded") {
  const auto heads = [](std::int64_t length) { return drawn({1, 1, length, 8}, 1, DType::bf16).to(kGpu); };
  const Tensor q = heads(3);
  const Tensor k = heads(5);
  Tensor y;
  cuda::Graph graph;
  graph.capture([&] { y = scaled_dot_product_attention(q, k, k); });
  for (std::int64_t queries = 1; queries < 300; ++queries) scaled_dot_product_attention(heads(queries), k, k);
  graph.replay();
  CHECK(same_numbers(y, scaled_dot_product_attention(q, k, k)));
  graph.replay();  // waits for the last replay of them: what it does not wait for, ThreadSanitizer tells
}

}  // namespace gradual
