#include <doctest/doctest.h>
#include <gradual/data/csv.h>
#include <gradual/data/digits.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/source_dir.h"

using namespace gradual;
using namespace gradual::data;
using test::message_of;

TEST_CASE("digits: the embedded data is the file, normalised") {
  const Dataset d = digits();
  CHECK(d.size() == 1797);
  CHECK(d.inputs.sizes() == Shape{1797, 1, 8, 8});
  CHECK(d.inputs.dtype() == DType::f32);
  CHECK(d.targets.sizes() == Shape{1797});
  CHECK(d.classes == 10);
  std::vector<int> counts(10);
  for (const std::int64_t y : d.targets.to_vector<std::int64_t>()) ++counts.at(static_cast<std::size_t>(y));
  CHECK(counts == std::vector<int>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180});
  double sum = 0;
  double squares = 0;
  for (const float x : d.inputs.to_vector<float>()) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const double n = 1797 * 64;
  CHECK(std::abs(sum / n) < 1e-3);
  CHECK(std::abs(std::sqrt(squares / n) - 1) < 1e-3);
  // the first image's first row is 0 0 5 13 9 1 0 0
  const auto* x = d.inputs.data<float>();
  CHECK(x[0] == static_cast<float>(-0.3053 / 0.3760));
  CHECK(x[3] == static_cast<float>((13 / 16.0 - 0.3053) / 0.3760));

  const Tensor file = read_csv(source_dir() + "/data/digits.csv.gz");
  CHECK(file.sizes() == Shape{1797, 65});
}

TEST_CASE("split: every sample is on one side, the same for the same seed") {
  const Tensor numbers = arange(0, 1797);
  const Dataset all{.inputs = numbers, .targets = numbers, .classes = 3, .name = "numbers"};
  const Split a = split(all, 1437, 5);
  CHECK(a.train.size() == 1437);
  CHECK(a.test.size() == 360);
  CHECK(a.train.classes == 3);
  CHECK(a.test.name == "numbers");
  std::vector<std::int64_t> seen = a.train.inputs.to_vector<std::int64_t>();
  CHECK_FALSE(std::is_sorted(seen.begin(), seen.end()));
  CHECK(seen == a.train.targets.to_vector<std::int64_t>());
  const std::vector<std::int64_t> rest = a.test.inputs.to_vector<std::int64_t>();
  seen.insert(seen.end(), rest.begin(), rest.end());
  CHECK(std::set<std::int64_t>(seen.begin(), seen.end()).size() == 1797);
  CHECK(split(all, 1437, 5).test.inputs.to_vector<std::int64_t>() == rest);
  CHECK(split(all, 1437, 6).test.inputs.to_vector<std::int64_t>() != rest);
  CHECK(message_of([&] { split(all, 1798); }) == "split: 1798 samples to train; allowed are 0 to all 1797");
}

TEST_CASE("take: strided samples, any dtype, and what is out of range") {
  const Tensor t = arange(0, 24);
  const Dataset d{.inputs = as_strided(t, {4, 3, 2}, {6, 1, 3}, 0), .targets = as_strided(t, {4}, {6}, 1)};
  const Batch b = take(d, {3, 0, 3});
  CHECK(b.size() == 3);
  CHECK(b.inputs.sizes() == Shape{3, 3, 2});
  CHECK(b.inputs.to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{18, 21, 19, 22, 20, 23, 0, 3, 1, 4, 2, 5, 18, 21, 19, 22, 20, 23});
  CHECK(b.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{19, 1, 19});
  CHECK(take(d, {}).inputs.sizes() == Shape{0, 3, 2});
  CHECK(message_of([&] { take(d, {4}); }) == "take: sample 4 of 4");
  CHECK(message_of([&] { take(d, {-1}); }) == "take: sample -1 of 4");
  CHECK(message_of([&] { take({.inputs = t, .targets = d.targets}, {0}); }) ==
        "dataset: inputs [24] and targets [4] need the same first size");
}
