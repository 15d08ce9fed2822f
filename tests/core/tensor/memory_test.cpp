// The allocator's accounts: bytes by category, peaks, limits, and the moves between categories.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gradual/core/ops/ops.h"
#include "gradual/core/support/error.h"
#include "gradual/core/support/parallel.h"
#include "gradual/core/support/threads.h"
#include "gradual/core/tensor/memory.h"

using namespace gradual;

namespace {
std::int64_t in_use(Category c) { return memory_stats()[c].current; }
std::int64_t total() { return memory_stats().total.current; }
}  // namespace

TEST_CASE("bytes are counted while a storage lives, once for all its views") {
  const std::int64_t before = in_use(Category::workspace);
  const std::int64_t sum = total();
  {
    const Tensor t = zeros({1000});
    CHECK(in_use(Category::workspace) == before + 4000);
    CHECK(total() == sum + 4000);
    const Tensor view = t.reshape({10, 100}).t();
    Tensor handle;
    handle = t;
    CHECK(in_use(Category::workspace) == before + 4000);
    const Tensor copy = view.clone();
    CHECK(in_use(Category::workspace) == before + 8000);
    Tensor kept;
    {
      const Tensor base = zeros({50});
      kept = base.narrow(0, 10, 3);
    }
    CHECK(in_use(Category::workspace) == before + 8200);  // the view keeps the whole storage
  }
  CHECK(in_use(Category::workspace) == before);
  CHECK(total() == sum);
  CHECK(empty({0, 5}).nbytes() == 0);
}

TEST_CASE("what workers of a parallel loop allocate is counted when the loop ends, and what they free too") {
  const ThreadsScope threads(2);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t before = in_use(Category::workspace);
    std::vector<Tensor> kept(64);
    parallel_for(64, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) kept[static_cast<std::size_t>(i)] = zeros({1}, DType::u8);
    });
    CHECK(in_use(Category::workspace) == before + 64);
    parallel_for(64, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) kept[static_cast<std::size_t>(i)] = Tensor();
    });
    CHECK(in_use(Category::workspace) == before);
  }
}

TEST_CASE("a category scope says where new storages count") {
  const std::int64_t optimizer = in_use(Category::optimizer);
  const std::int64_t gradients = in_use(Category::gradients);
  Tensor kept;
  {
    const CategoryScope outer(Category::optimizer);
    kept = zeros({10});
    {
      const CategoryScope inner(Category::gradients);
      const Tensor t = zeros({20});
      CHECK(in_use(Category::gradients) == gradients + 80);
    }
    CHECK(current_category() == Category::optimizer);
    CHECK(in_use(Category::gradients) == gradients);
  }
  CHECK(current_category() == Category::workspace);
  CHECK(in_use(Category::optimizer) == optimizer + 40);  // where it started, not where it is now
  std::thread([] { CHECK(current_category() == Category::workspace); }).join();
}

TEST_CASE("a storage moves between categories") {
  const Tensor t = zeros({100});
  const std::int64_t workspace = in_use(Category::workspace);
  const std::int64_t parameters = in_use(Category::parameters);
  const std::int64_t activations = in_use(Category::activations);
  t.unsafe_impl()->storage->add_saved();
  CHECK(in_use(Category::activations) == activations + 400);
  CHECK(in_use(Category::workspace) == workspace - 400);
  t.unsafe_impl()->storage->add_saved();  // saved by a second node: counted once
  CHECK(in_use(Category::activations) == activations + 400);
  t.set_category(Category::parameters);  // a parameter stays one while it is saved
  CHECK(in_use(Category::parameters) == parameters + 400);
  CHECK(in_use(Category::activations) == activations);
  t.set_category(Category::workspace);
  CHECK(in_use(Category::activations) == activations + 400);
  t.unsafe_impl()->storage->remove_saved();
  CHECK(in_use(Category::activations) == activations + 400);
  t.unsafe_impl()->storage->remove_saved();
  CHECK(in_use(Category::activations) == activations);
  CHECK(in_use(Category::workspace) == workspace);
  CHECK(in_use(Category::parameters) == parameters);
}

TEST_CASE("what the tape saves is counted as activations until it is gone") {
  const std::int64_t before = in_use(Category::activations);
  const Tensor w = Tensor(randn({64, 64})).set_requires_grad();
  {
    const Tensor y = exp(w * w);
    CHECK(in_use(Category::activations) > before);
    y.sum().backward();
  }
  CHECK(in_use(Category::activations) == before);
}

TEST_CASE("each category's peak is its own, the total's is the peak of the sum") {
  reset_peak_memory();
  const MemoryStats start = memory_stats();
  {
    const CategoryScope scope(Category::casts);
    const Tensor t = zeros({1000});
  }
  {
    const CategoryScope scope(Category::masters);
    const Tensor t = zeros({2000});
  }
  const MemoryStats s = memory_stats();
  CHECK(s[Category::casts].peak == start[Category::casts].current + 4000);
  CHECK(s[Category::masters].peak == start[Category::masters].current + 8000);
  CHECK(s.total.peak == start.total.current + 8000);  // never both at once
  CHECK(s.total.current == start.total.current);
  reset_peak_memory();
  CHECK(memory_stats().total.peak == memory_stats().total.current);
  CHECK(memory_summary().find("masters") != std::string::npos);
}

TEST_CASE("scratch memory is counted as workspace") {
  const std::int64_t before = in_use(Category::workspace);
  {
    const CategoryScope scope(Category::gradients);
    const Scratch s(12345);
    CHECK(reinterpret_cast<std::uintptr_t>(s.data()) % 64 == 0);
    CHECK(in_use(Category::workspace) == before + 12345);
  }
  CHECK(in_use(Category::workspace) == before);
}

TEST_CASE("memory of somebody else is not counted, and given back once") {
  std::vector<float> data(100, 2);
  const std::int64_t before = total();
  int deleted = 0;
  {
    Tensor view;
    {
      const Tensor t = from_blob(data.data(), {10, 10}, DType::f32, [&] { ++deleted; });
      CHECK(total() == before);
      CHECK(t.sum().item() == 200);
      t.fill_(3);
      CHECK(data[99] == 3);
      t.set_category(Category::parameters);
      CHECK(total() == before);
      view = t[2];
    }
    CHECK(deleted == 0);
  }
  CHECK(deleted == 1);
}

TEST_CASE("an impossible request says what was asked for and what is in use") {
  const std::int64_t before = total();
  CHECK_THROWS_WITH_AS(empty({std::int64_t{1} << 50}), doctest::Contains("asked for 4.00 PiB (4503599627370496 bytes)"),
                       Error);
  CHECK_THROWS_WITH_AS(empty({std::int64_t{1} << 50}), doctest::Contains("in use"), Error);
  CHECK_THROWS_AS(empty({std::int64_t{1} << 40, std::int64_t{1} << 40}), Error);  // numel beyond 64 bits
  CHECK_THROWS_AS(empty({std::int64_t{1} << 62}), Error);                         // bytes beyond 64 bits
  CHECK(total() == before);
}

TEST_CASE("a request past all size classes is refused under any limit") {
  set_memory_limit(std::numeric_limits<std::int64_t>::max());
  for (const int log : {46, 54, 60}) {
    CAPTURE(log);
    for (const std::int64_t n : {15000, 1 << 20}) empty({n});  // blocks that go back to the cache
    CHECK_THROWS_WITH_AS(empty({std::int64_t{1} << log}), doctest::Contains("out of memory"), Error);
  }
  set_memory_limit(0);
}

TEST_CASE("a limit holds for what is in use, caches aside") {
  empty_cache();
  set_memory_limit(total() + (1 << 20));
  {
    const Tensor t = zeros({200000});
    CHECK_THROWS_WITH_AS(zeros({200000}), doctest::Contains("1.00 MiB allowed"), Error);
  }
  CHECK(zeros({200000}).numel() == 200000);
  set_memory_limit(0);  // the machine's memory again
  CHECK(zeros({400000}).numel() == 400000);
}

TEST_CASE("blocks are aligned for vectors, of whatever size") {
  for (std::int64_t n : {1, 3, 17, 100, 1000, 12345, 1 << 20}) {
    const Tensor t = empty({n}, {.dtype = DType::u8});
    CHECK(reinterpret_cast<std::uintptr_t>(t.raw()) % 64 == 0);
  }
}

#ifndef __SANITIZE_ADDRESS__  // whose blocks are its own
TEST_CASE("large blocks begin at different places of their pages") {
  for (const std::int64_t bytes : {100 << 10, 1 << 20, 5 << 20}) {
    CAPTURE(bytes);
    for (int again = 0; again < 2; ++again) {
      empty_cache();
      std::vector<Tensor> kept;
      std::set<std::uintptr_t> places;
      for (int i = 0; i < 8; ++i) {
        kept.push_back(full({bytes}, i, {.dtype = DType::u8}));
        places.insert(reinterpret_cast<std::uintptr_t>(kept.back().raw()) % 4096 / 256);
      }
      CHECK(places.size() == 8);
      for (int i = 0; i < 8; ++i) CHECK(kept[i].narrow(0, bytes - 1, 1).item() == i);
    }
  }
}
#endif

TEST_CASE("threads may free what others allocated") {
  const std::int64_t before = total();
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([k] {
      std::vector<Tensor> kept;
      for (int i = 0; i < 200; ++i) {
        kept.push_back(full({1 + i * (k + 1)}, i));
        if (i % 3 == 0) kept.erase(kept.begin());
      }
      std::thread([gone = std::move(kept)]() mutable { gone.clear(); }).join();
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(total() == before);
}
