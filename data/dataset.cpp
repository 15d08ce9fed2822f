#include "dataset.h"

#include <cstring>

namespace gradual::data {
namespace {

// The numbers of sample i, written row-major; strides of any kind.
void copy_strided(const char* from, const Shape& sizes, const Shape& strides, int dim, std::size_t width, char*& to) {
  const bool is_run = dim == sizes.size() - 1 && strides[dim] == 1;
  if (dim == sizes.size() || is_run) {
    const std::size_t bytes = (is_run ? static_cast<std::size_t>(sizes[dim]) : 1) * width;
    std::memcpy(to, from, bytes);
    to += bytes;
    return;
  }
  for (std::int64_t i = 0; i < sizes[dim]; ++i)
    copy_strided(from + i * strides[dim] * static_cast<std::int64_t>(width), sizes, strides, dim + 1, width, to);
}

// Not index_select: this also runs on the loader's thread and is no part of what an observer watches.
Tensor take_rows(const Tensor& t, const std::vector<std::int64_t>& indices) {
  Shape sizes = t.sizes();
  sizes[0] = static_cast<std::int64_t>(indices.size());
  Tensor out = empty(sizes, {.dtype = t.dtype()});
  if (out.numel() == 0) return out;
  const std::size_t width = size_of(t.dtype());
  const std::size_t row = out.nbytes() / indices.size();
  const auto* from = static_cast<const char*>(t.raw());
  auto* to = static_cast<char*>(out.raw());
  for (const std::int64_t i : indices) {
    const char* sample = from + i * t.strides()[0] * static_cast<std::int64_t>(width);
    if (t.is_contiguous()) {
      std::memcpy(to, sample, row);
      to += row;
    } else {
      copy_strided(sample, sizes, t.strides(), 1, width, to);
    }
  }
  return out;
}

}  // namespace

std::int64_t Dataset::size() const {
  const Shape& a = inputs.sizes();
  const Shape& b = targets.sizes();
  if (a.empty() || b.empty() || a[0] != b[0])
    fail("dataset: inputs " + to_string(a) + " and targets " + to_string(b) + " need the same first size");
  return a[0];
}

Batch take(const Dataset& dataset, const std::vector<std::int64_t>& indices) {
  const std::int64_t n = dataset.size();
  for (const std::int64_t i : indices) {
    if (i < 0 || i >= n) fail("take: sample " + std::to_string(i) + " of " + std::to_string(n));
  }
  if (!dataset.inputs.device().is_cpu() || !dataset.targets.device().is_cpu())
    fail("take: a dataset lives on the CPU; move the batches instead");
  return {take_rows(dataset.inputs, indices), take_rows(dataset.targets, indices)};
}

Split split(const Dataset& dataset, std::int64_t train_count, std::uint64_t seed) {
  const std::int64_t n = dataset.size();
  if (train_count < 0 || train_count > n)
    fail("split: " + std::to_string(train_count) + " of " + std::to_string(n) + " samples to train");
  Generator generator(seed);
  const std::vector<std::int64_t> order = randperm(n, generator).to_vector<std::int64_t>();
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const Batch b = take(dataset, {order.begin() + begin, order.begin() + end});
    return Dataset{.inputs = b.inputs, .targets = b.targets, .classes = dataset.classes, .name = dataset.name};
  };
  return {.train = part(0, train_count), .test = part(train_count, n)};
}

}  // namespace gradual::data
