#include "dataset.h"

#include <fmt/format.h>

#include <cstring>

namespace gradual::data {
namespace {

// Not index_select: this also runs on the loader's thread and is no part of what an observer watches.
Tensor take_rows(const Tensor& t, const std::vector<std::int64_t>& indices) {
  Shape sizes = t.sizes();
  sizes[0] = static_cast<std::int64_t>(indices.size());
  Tensor out = empty(sizes, {.dtype = t.dtype()});
  // Where a sample's runs of consecutive numbers start; strides may be of any kind.
  const int last = t.ndim() - 1;
  const bool runs = last > 0 && t.strides()[last] == 1;
  std::vector<std::int64_t> starts = {0};
  for (int d = 1; d < t.ndim() - (runs ? 1 : 0); ++d) {
    std::vector<std::int64_t> finer;
    for (const std::int64_t start : starts)
      for (std::int64_t i = 0; i < sizes[d]; ++i) finer.push_back(start + i * t.strides()[d]);
    starts = std::move(finer);
  }
  const auto width = static_cast<std::int64_t>(size_of(t.dtype()));
  const std::size_t bytes = static_cast<std::size_t>(runs ? sizes[last] * width : width);
  const auto* from = static_cast<const char*>(t.raw());
  auto* to = static_cast<char*>(out.raw());
  for (const std::int64_t i : indices)
    for (const std::int64_t start : starts) {
      if (bytes > 0) std::memcpy(to, from + (i * t.strides()[0] + start) * width, bytes);
      to += bytes;
    }
  return out;
}

}  // namespace

std::int64_t Dataset::size() const {
  const Shape& a = inputs.sizes();
  const Shape& b = targets.sizes();
  if (a.empty() || b.empty() || a[0] != b[0])
    fail(fmt::format("dataset: inputs {} and targets {} need the same first size", to_string(a), to_string(b)));
  return a[0];
}

Batch take(const Dataset& dataset, const std::vector<std::int64_t>& indices) {
  const std::int64_t n = dataset.size();
  for (const std::int64_t i : indices)
    if (i < 0 || i >= n) fail(fmt::format("take: sample {} of {}", i, n));
  if (!dataset.inputs.device().is_cpu() || !dataset.targets.device().is_cpu())
    fail("take: a dataset lives on the CPU; move the batches instead");
  return {take_rows(dataset.inputs, indices), take_rows(dataset.targets, indices)};
}

Split split(const Dataset& dataset, std::int64_t train_count, std::uint64_t seed) {
  const std::int64_t n = dataset.size();
  if (train_count < 0 || train_count > n) fail(fmt::format("split: {} of {} samples to train", train_count, n));
  Generator generator(seed);
  const std::vector<std::int64_t> order = randperm(n, generator).to_vector<std::int64_t>();
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const Batch b = take(dataset, {order.begin() + begin, order.begin() + end});
    return Dataset{.inputs = b.inputs, .targets = b.targets, .classes = dataset.classes, .name = dataset.name};
  };
  return {.train = part(0, train_count), .test = part(train_count, n)};
}

}  // namespace gradual::data
