#include "dataset.h"

#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::data {

std::int64_t Dataset::size() const {
  if (!inputs.defined() || !targets.defined()) throw_error("dataset: it has no inputs or targets; it was not filled");
  const Shape& a = inputs.sizes();
  const Shape& b = targets.sizes();
  if (a.empty() || b.empty() || a[0] != b[0])
    throwf("dataset: inputs {} and targets {} need the same first size", to_string(a), to_string(b));
  for (const auto& [field, values] : fields)
    if (values.dim() == 0 || values.size(0) != a[0])
      throwf("dataset: '{}' {} and '{}' {} need the same first size", field, to_string(values.sizes()),
             fields.front().first, to_string(a));
  return a[0];
}

Batch take(const Dataset& dataset, const std::vector<std::int64_t>& indices) {
  const std::int64_t n = dataset.size();
  for (const std::int64_t i : indices)
    if (i < 0 || i >= n) throwf("take: sample {} of {}", i, n);
  if (!dataset.inputs.device().is_cpu() || !dataset.targets.device().is_cpu())
    throw_error("take: a dataset lives on the CPU; move the batches instead");
  const Tensor rows = from_data(indices, {static_cast<std::int64_t>(indices.size())}, {.dtype = DType::i64});
  const Scoped<Chain> bare(chain(), {});  // observers do not see this, on the loader's thread or on this one
  if (dataset.fields.empty()) return {index_select(dataset.inputs, 0, rows), index_select(dataset.targets, 0, rows)};
  Batch batch;
  for (const auto& [field, values] : dataset.fields) batch.fields.emplace_back(field, index_select(values, 0, rows));
  batch.inputs = batch.fields.front().second;
  batch.targets = batch.fields.back().second;
  return batch;
}

Split split(const Dataset& dataset, std::int64_t train_count, std::uint64_t seed) {
  const std::int64_t n = dataset.size();
  if (train_count < 0 || train_count > n) throwf("split: {} samples to train; allowed are 0 to all {}", train_count, n);
  Generator generator(seed);
  const std::vector<std::int64_t> order = randperm(n, generator).to_vector<std::int64_t>();
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const Batch b = take(dataset, {order.begin() + begin, order.begin() + end});
    return Dataset{.inputs = b.inputs,
                   .targets = b.targets,
                   .classes = dataset.classes,
                   .name = dataset.name,
                   .tokens = dataset.tokens,
                   .fields = b.fields};
  };
  return {.train = part(0, train_count), .test = part(train_count, n)};
}

}  // namespace gradual::data
