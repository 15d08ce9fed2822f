#include <doctest/doctest.h>
#include <gradual/data/data_loader.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/files.h"

using namespace gradual;
using namespace gradual::data;
using test::message_of;

namespace {

using Numbers = std::vector<std::int64_t>;

Dataset numbers(std::int64_t n) {
  const Tensor t = arange(0, static_cast<double>(n));
  return {.inputs = t, .targets = t};
}

// The samples of each batch of what is left of the epoch.
std::vector<Numbers> rest_of_epoch(DataLoader& loader) {
  std::vector<Numbers> out;
  for (const Batch& b : loader) out.push_back(b.inputs.to_vector<std::int64_t>());
  return out;
}

std::vector<std::vector<Numbers>> epochs(DataLoader& loader, int count) {
  std::vector<std::vector<Numbers>> out;
  for (int e = 0; e < count; ++e) out.push_back(rest_of_epoch(loader));
  return out;
}

Numbers joined(const std::vector<Numbers>& batches) {
  Numbers out;
  for (const Numbers& b : batches) out.insert(out.end(), b.begin(), b.end());
  return out;
}

}  // namespace

TEST_CASE("a loader hands out every sample once, in order or shuffled") {
  DataLoader plain(numbers(10), {.batch = 4});
  CHECK(plain.size() == 3);
  CHECK(rest_of_epoch(plain) == std::vector<Numbers>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}});
  CHECK(plain.epoch() == 1);
  CHECK(plain.position() == 0);
  CHECK(rest_of_epoch(plain).size() == 3);

  DataLoader cut(numbers(10), {.batch = 4, .drop_last = true});
  CHECK(cut.size() == 2);
  CHECK(rest_of_epoch(cut) == std::vector<Numbers>{{0, 1, 2, 3}, {4, 5, 6, 7}});

  DataLoader shuffled(numbers(100), {.batch = 7, .shuffle = true, .seed = 3});
  Numbers first = joined(rest_of_epoch(shuffled));
  Numbers second = joined(rest_of_epoch(shuffled));
  CHECK(first != second);
  CHECK_FALSE(std::is_sorted(first.begin(), first.end()));
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  CHECK(first == arange(0, 100).to_vector<std::int64_t>());
  CHECK(second == first);

  DataLoader none(numbers(0), {.batch = 4});
  CHECK(rest_of_epoch(none).empty());
  CHECK(none.epoch() == 1);
}

TEST_CASE("the order depends on the seed alone, not on prefetching") {
  std::vector<std::vector<std::vector<Numbers>>> all;
  for (const bool prefetch : {false, true}) {
    DataLoader loader(numbers(53), {.batch = 5, .shuffle = true, .seed = 9, .prefetch = prefetch});
    all.push_back(epochs(loader, 3));
  }
  for (const auto& other : all) CHECK(other == all[0]);
  DataLoader another(numbers(53), {.batch = 5, .shuffle = true, .seed = 10});
  CHECK(epochs(another, 3) != all[0]);
}

TEST_CASE("random augmentation is the same with and without prefetching") {
  const auto noise = [](const Numbers& indices) {
    return Batch{rand({static_cast<std::int64_t>(indices.size())}), Tensor()};
  };
  std::vector<std::vector<double>> all;
  for (const bool prefetch : {false, true}) {
    DataLoader loader(20, noise, {.batch = 6, .seed = 1, .prefetch = prefetch});
    std::vector<double> drawn;
    for (int e = 0; e < 2; ++e) {
      for (const Batch& b : loader)
        for (const double x : b.inputs.to_vector<double>()) drawn.push_back(x);
    }
    all.push_back(drawn);
  }
  CHECK(all[0] == all[1]);
  std::sort(all[0].begin(), all[0].end());
  CHECK(std::adjacent_find(all[0].begin(), all[0].end()) == all[0].end());
  CHECK(default_generator().stream() == 0);  // nobody's own generator was touched
}

TEST_CASE("a resumed loader continues with the next batch") {
  const DataLoaderOptions options{.batch = 4, .shuffle = true, .seed = 77};
  DataLoader whole(numbers(30), options);
  std::vector<Numbers> expected;
  for (const auto& epoch : epochs(whole, 3)) expected.insert(expected.end(), epoch.begin(), epoch.end());
  for (const bool prefetch : {false, true}) {
    for (std::size_t stop = 0; stop < expected.size(); ++stop) {
      CAPTURE(stop);
      DataLoader first(numbers(30), options);
      std::vector<Numbers> seen;
      Batch b;
      while (seen.size() < stop)
        if (first.next(b)) seen.push_back(b.inputs.to_vector<std::int64_t>());
      DataLoaderOptions other = options;
      other.prefetch = prefetch;
      other.seed = 0;  // the state has it
      DataLoader second(numbers(30), other);
      second.next(b);
      second.load_state_dict(first.state_dict());
      CHECK(second.epoch() == first.epoch());
      while (seen.size() < expected.size())
        if (second.next(b)) seen.push_back(b.inputs.to_vector<std::int64_t>());
      CHECK(seen == expected);
    }
  }
}

TEST_CASE("a loader in the middle of an epoch finishes it, or starts over") {
  DataLoader loader(numbers(10), {.batch = 2, .shuffle = true});
  std::vector<Numbers> seen;
  for (const Batch& b : loader) {
    seen.push_back(b.inputs.to_vector<std::int64_t>());
    if (seen.size() == 2) break;
  }
  CHECK(loader.position() == 2);
  DataLoader moved = std::move(loader);
  for (const Numbers& b : rest_of_epoch(moved)) seen.push_back(b);
  CHECK(seen.size() == 5);
  moved.start_epoch(0);
  CHECK(rest_of_epoch(moved) == seen);
  Batch b;
  moved.next(b);
  const Numbers first = b.inputs.to_vector<std::int64_t>();
  moved.start_epoch(1);
  moved.next(b);
  CHECK(b.inputs.to_vector<std::int64_t>() == first);
  CHECK(moved.epoch() == 1);
}

TEST_CASE("what fetching throws reaches the caller, and the batch is tried again") {
  for (const bool prefetch : {false, true}) {
    CAPTURE(prefetch);
    std::atomic<int> failures{1};
    const auto fetch = [&](const Numbers& indices) {
      if (indices[0] == 4 && failures-- > 0) throw std::runtime_error("the disk is on fire");
      return take(numbers(10), indices);
    };
    DataLoader loader(10, fetch, {.batch = 2, .prefetch = prefetch});
    Batch b;
    CHECK(loader.next(b));
    CHECK(loader.next(b));
    CHECK_THROWS_WITH_AS(loader.next(b), "the disk is on fire", std::runtime_error);
    CHECK(loader.position() == 2);
    CHECK(loader.next(b));
    CHECK(b.inputs.to_vector<std::int64_t>() == Numbers{4, 5});
    CHECK(rest_of_epoch(loader).size() == 2);
  }
}

TEST_CASE("the thread makes one batch ahead") {
  std::atomic<int> made{0};
  const auto fetch = [&](const Numbers& indices) {
    ++made;
    return take(numbers(100), indices);
  };
  DataLoader loader(100, fetch, {.batch = 1});
  Batch b;
  for (int handed_out = 1; handed_out <= 50; ++handed_out) {
    loader.next(b);
    CHECK(made <= handed_out + 1);
  }
}

TEST_CASE("what is wrong with a loader's options or state is said") {
  CHECK(message_of([] { DataLoader(numbers(4), {.batch = 0}); }) ==
        "DataLoader: batch 0 is not allowed; it must be at least 1");
  CHECK(test::contains(message_of([] { DataLoader(4, nullptr); }), "is null"));
  CHECK(message_of([] { DataLoader(Dataset(), {.batch = 2}); }) ==
        "dataset: it has no inputs or targets; it was not filled");
  DataLoader a(numbers(10), {.batch = 2});
  DataLoader b(numbers(10), {.batch = 5});
  CHECK(message_of([&] { b.load_state_dict(a.state_dict()); }) == "DataLoader: the state has batch 2, this loader 5");
  StateDict state = a.state_dict();
  state.set("position", 6);
  CHECK(message_of([&] { a.load_state_dict(state); }) ==
        "DataLoader: the state is at batch 6 of epoch 0; an epoch has 5 batches");
  CHECK(a.position() == 0);
  CHECK(test::contains(message_of([&] { a.start_epoch(-1); }), "they count from 0"));
}
