#include "target_checks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "../core/ops/ops.h"
#include "../core/support/generator.h"

namespace gradual::lab {
namespace {

constexpr std::int64_t kMostSamples = 1024;
constexpr double kDeviations = 4;     // above chance
constexpr double kCloser = 0.75;      // of the squared difference of random pairs
constexpr std::int64_t kContext = 3;  // tokens up to a position that tell its target
constexpr std::uint64_t kSeed = 0x7eac;

// [n, width] of f32: tokens as they are.
Tensor flat(const Tensor& t) {
  return t.to(DType::f32).reshape({t.size(0), t.numel() / std::max<std::int64_t>(1, t.size(0))});
}

// The index of the nearest other row of each.
std::vector<std::int64_t> nearest_rows(const Tensor& rows) {
  const std::int64_t n = rows.size(0);
  const Tensor x = rows - mean(rows, {0}, true);
  const Tensor squares = sum(square(x), {1}, true);
  const std::vector<float> distance =
      (squares + squares.transpose(0, 1) - matmul(x, x.transpose(0, 1)) * 2).to_vector<float>();
  std::vector<std::int64_t> nearest;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t best = i == 0 ? 1 : 0;
    for (std::int64_t k = 0; k < n; ++k)
      if (k != i && distance[static_cast<std::size_t>(i * n + k)] < distance[static_cast<std::size_t>(i * n + best)])
        best = k;
    nearest.push_back(best);
  }
  return nearest;
}

// The same of rows of tokens: the nearest one has the most equal tokens from the end on.
std::vector<std::int64_t> nearest_contexts(const std::vector<std::int64_t>& tokens) {
  const auto n = static_cast<std::int64_t>(tokens.size()) / kContext;
  const auto token = [&tokens](std::int64_t row, std::int64_t back) {
    return tokens[static_cast<std::size_t>((row + 1) * kContext - 1 - back)];
  };
  std::vector<std::int64_t> nearest;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t best = i == 0 ? 1 : 0;
    std::int64_t most = -1;
    for (std::int64_t k = 0; k < n; ++k) {
      std::int64_t equal = 0;
      while (equal < kContext && token(i, equal) == token(k, equal)) ++equal;
      if (k == i || equal <= most) continue;
      best = k;
      most = equal;
    }
    nearest.push_back(best);
  }
  return nearest;
}

NearestTargets of_classes(const std::vector<std::int64_t>& classes, const std::vector<std::int64_t>& nearest) {
  NearestTargets t;
  const auto n = static_cast<double>(classes.size());
  std::vector<std::int64_t> sorted = classes;
  std::ranges::sort(sorted);
  for (auto at = sorted.begin(); at != sorted.end();) {
    const auto end = std::upper_bound(at, sorted.end(), *at);
    t.random += std::pow(static_cast<double>(end - at) / n, 2);
    at = end;
  }
  for (std::size_t i = 0; i < classes.size(); ++i)
    t.nearest += (classes[i] == classes[static_cast<std::size_t>(nearest[i])]) / n;
  t.tells = t.nearest > t.random + kDeviations * std::sqrt(t.random * (1 - t.random) / n);
  return t;
}

NearestTargets of_numbers(const Tensor& targets, const std::vector<std::int64_t>& nearest) {
  const Tensor y = flat(targets);
  const Tensor theirs = index_select(y, 0, from_data(nearest, {std::ssize(nearest)}, {.dtype = DType::i64}));
  NearestTargets t{.of_classes = false};
  t.nearest = mean(square(y - theirs)).item();
  t.random = 2 * mean(var(y, {0})).item();
  t.tells = t.nearest < kCloser * t.random;
  return t;
}

// Of at most kMostSamples positions that have a target: negative ones are ignored by losses. They are drawn, as evenly
// spaced ones may all be at the same place of their sequences.
std::vector<std::int64_t> drawn_places(const std::vector<std::int64_t>& targets) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < std::ssize(targets); ++i)
    if (targets[static_cast<std::size_t>(i)] >= 0) places.push_back(i);
  if (std::ssize(places) <= kMostSamples) return places;
  Generator random(kSeed);
  std::vector<std::int64_t> drawn;
  for (const std::int64_t i : randperm(std::ssize(places), random).narrow(0, 0, kMostSamples).to_vector<std::int64_t>())
    drawn.push_back(places[static_cast<std::size_t>(i)]);
  std::ranges::sort(drawn);
  return drawn;
}

// A target at each position of sequences: positions are the samples. A token is told by those before it too.
std::optional<NearestTargets> of_positions(const Tensor& inputs, const Tensor& targets) {
  const std::int64_t length = targets.size(1);
  const std::int64_t all = targets.numel();
  const std::vector<std::int64_t> every = targets.to(DType::i64).to_vector<std::int64_t>();
  const std::vector<std::int64_t> places = drawn_places(every);
  const std::int64_t n = std::ssize(places);
  if (n < 2) return {};
  std::vector<std::int64_t> classes;
  for (const std::int64_t place : places) classes.push_back(every[static_cast<std::size_t>(place)]);
  if (inputs.is_floating()) {
    const Tensor rows = flat(inputs.reshape({all, inputs.numel() / all}));
    return of_classes(classes, nearest_rows(index_select(rows, 0, from_data(places, {n}, {.dtype = DType::i64}))));
  }
  const std::vector<std::int64_t> tokens = inputs.to(DType::i64).to_vector<std::int64_t>();
  std::vector<std::int64_t> contexts;
  for (const std::int64_t place : places)
    for (std::int64_t back = kContext - 1; back >= 0; --back)
      contexts.push_back(place % length >= back ? tokens[static_cast<std::size_t>(place - back)] : -1);
  return of_classes(classes, nearest_contexts(contexts));
}

// Whether each position of the inputs' sequences has a target.
bool has_positions(const data::Dataset& d) {
  const bool tokens = !d.inputs.is_floating() && d.inputs.sizes() == d.targets.sizes();
  const bool rows = d.inputs.is_floating() && d.inputs.dim() == 3 && d.inputs.size(1) == d.targets.size(1);
  return d.targets.dim() == 2 && d.targets.numel() > 1 && (tokens || rows);
}

// For each sample the class whose tokens it has most often; tokens are taken modulo the classes.
Tensor of_counts(const Tensor& tokens, std::int64_t classes) {
  const std::int64_t n = tokens.size(0);
  const std::vector<std::int64_t> all = tokens.to(DType::i64).to_vector<std::int64_t>();
  const auto width = static_cast<std::int64_t>(all.size()) / n;
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(classes));
    for (std::int64_t k = 0; k < width; ++k)
      ++counts[static_cast<std::size_t>(std::abs(all[static_cast<std::size_t>(i * width + k)]) % classes)];
    targets.push_back(std::ranges::max_element(counts) - counts.begin());
  }
  return from_data(targets, {n}, {.dtype = DType::i64});
}

Tensor of_tokens(const Tensor& tokens, std::int64_t classes) {
  std::vector<std::int64_t> all = tokens.to(DType::i64).to_vector<std::int64_t>();
  for (std::int64_t& token : all) token = std::abs(token) % classes;
  return from_data(all, tokens.sizes(), {.dtype = DType::i64});
}

// Undefined if there is none for these shapes.
Tensor taught_targets(const Tensor& inputs, const Tensor& targets, std::int64_t classes) {
  Generator random(kSeed);
  const bool of_classes = !targets.is_floating();
  if (of_classes && classes < 2) return {};
  if (!inputs.is_floating()) {
    if (!of_classes) return {};
    if (inputs.sizes() == targets.sizes()) return of_tokens(inputs, classes);
    return targets.dim() == 1 ? of_counts(inputs, classes) : Tensor();
  }
  const std::int64_t n = inputs.size(0);
  if (of_classes && targets.dim() != 1) return {};
  const std::int64_t outputs = of_classes ? classes : targets.numel() / n;
  const Tensor x = flat(inputs);
  Tensor y = matmul(x - mean(x, {0}, true), randn({x.size(1), outputs}, {}, random));
  y = y / sqrt(var(y, {0}, true) + 1e-12);
  if (of_classes) return argmax(y, 1);
  const Tensor own = flat(targets);
  return (y * sqrt(var(own, {0}, true)) + mean(own, {0}, true)).reshape(targets.sizes()).to(targets.dtype());
}

// Both parts as one, so that they have the same function.
data::Split taught_split(data::Split split) {
  const std::int64_t n = split.train.size();
  const Tensor targets = taught_targets(cat({split.train.inputs, split.test.inputs}, 0),
                                        cat({split.train.targets, split.test.targets}, 0), split.train.classes);
  split.train.targets = targets.defined() ? targets.narrow(0, 0, n).contiguous() : Tensor();
  split.test.targets = targets.defined() ? targets.narrow(0, n, split.test.inputs.size(0)).contiguous() : Tensor();
  return split;
}

}  // namespace

std::optional<NearestTargets> nearest_targets(const data::Dataset& train) {
  const bool classes = !train.targets.is_floating();
  if (!train.fields.empty() || train.size() < 2) return {};
  if (classes && has_positions(train)) return of_positions(train.inputs, train.targets);
  if (classes && train.targets.dim() != 1) return {};
  const std::int64_t n = std::min(train.size(), kMostSamples);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < n; ++i) rows.push_back(i * train.size() / n);
  const data::Batch some = data::take(train, rows);
  const std::vector<std::int64_t> nearest = nearest_rows(flat(some.inputs));
  return classes ? of_classes(some.targets.to_vector<std::int64_t>(), nearest) : of_numbers(some.targets, nearest);
}

std::optional<LabData> taught(const LabData& data, std::uint64_t seed) {
  const data::Split given = data.load(seed);
  if (!given.train.fields.empty() || !taught_split(given).train.targets.defined()) return {};
  LabData other = data;
  other.load = [load = data.load](std::uint64_t s) { return taught_split(load(s)); };
  return other;
}

}  // namespace gradual::lab
