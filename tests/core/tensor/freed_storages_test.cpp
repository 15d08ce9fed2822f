// Storages that tell when they are freed.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "gradual/core/ops/ops.h"
#include "gradual/core/tensor/freed_storages.h"
#include "gradual/core/tensor/memory.h"

using namespace gradual;

namespace {

std::uint64_t id_of(const Tensor& t) { return t.unsafe_impl()->storage->id; }

}  // namespace

TEST_CASE("a watched storage is told once, when its last tensor is gone, of whatever size") {
  FreedStorages freed;
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{3}, std::int64_t{5000}, std::int64_t{1} << 18}) {
    CAPTURE(n);
    Tensor t = zeros({n});
    const std::uint64_t id = id_of(t);
    const void* const address = t.unsafe_impl()->storage->data;
    freed.watch(t);
    freed.watch(t);
    Tensor view = t.reshape({n, 1});
    t = {};
    CHECK(freed.take().empty());
    view = {};
    const std::vector<FreedStorage> gone = freed.take();
    REQUIRE(gone.size() == 1);
    CHECK(gone[0].id == id);
    CHECK(gone[0].address == address);
    CHECK(freed.take().empty());
  }
}

TEST_CASE("storages that nobody watches are not told, and undefined tensors have none") {
  FreedStorages freed;
  freed.watch(Tensor());
  { const Tensor t = zeros({5000}); }
  CHECK(freed.take().empty());
}

TEST_CASE("all that watch a storage are told, on whatever thread it is freed, and one may be gone before") {
  FreedStorages freed;
  auto other = std::make_unique<FreedStorages>();
  Tensor t = zeros({100});
  Tensor u = zeros({100});
  const std::uint64_t id = id_of(t);
  freed.watch(t);
  other->watch(t);
  other->watch(u);
  std::thread([gone = std::move(t)]() mutable { gone = {}; }).join();
  CHECK(freed.take().size() == 1);
  const std::vector<FreedStorage> told = other->take();
  REQUIRE(told.size() == 1);
  CHECK(told[0].id == id);
  other.reset();
  u = {};
  CHECK(freed.take().empty());
}

TEST_CASE("watching changes no account, and borrowed memory still has its deleter called") {
  const auto in_use = [] { return memory_stats().total.current; };
  const std::int64_t before = in_use();
  FreedStorages freed;
  bool deleted = false;
  {
    const Tensor own = zeros({1000});
    const std::int64_t with_own = in_use();
    freed.watch(own);
    CHECK(in_use() == with_own);
    float numbers[4] = {1, 2, 3, 4};
    const Tensor borrowed = from_blob(numbers, {4}, DType::f32, [&deleted] { deleted = true; });
    freed.watch(borrowed);
    CHECK(in_use() == with_own);
    CHECK(sum(borrowed).item() == 10);
    const auto kept = [] { return memory_stats()[Category::activations].current; };
    const std::int64_t kept_before = kept();
    borrowed.unsafe_impl()->storage->add_saved();
    CHECK(kept() == kept_before);
    borrowed.unsafe_impl()->storage->remove_saved();
    own.unsafe_impl()->storage->add_saved();
    CHECK(kept() == kept_before + 4000);
    own.unsafe_impl()->storage->remove_saved();
    CHECK(kept() == kept_before);
    CHECK(!deleted);
  }
  CHECK(deleted);
  CHECK(freed.take().size() == 2);
  CHECK(in_use() == before);
}
