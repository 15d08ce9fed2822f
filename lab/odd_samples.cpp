#include "odd_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "../core/support/generator.h"
#include "../data/data_loader.h"
#include "objective.h"

namespace gradual::lab {
namespace {

constexpr double kLarge = 20;       // times the median magnitude
constexpr double kCostly = 30;      // times the median loss
constexpr double kCostlyBatch = 3;  // times the median loss of batches
constexpr double kJump = 3;         // times the median loss of the steps before
constexpr std::ptrdiff_t kBefore = 4;
constexpr std::size_t kMost = 8;
constexpr std::size_t kMostBatches = 4;  // whose samples are looked at one by one
constexpr std::size_t kFewInCommon = 4;  // samples of all jumps
constexpr double kMostOfAll = 0.01;
constexpr std::int64_t kChunk = 1024;

using Odd = std::map<std::int64_t, OddSample>;

void add(Odd& odd, OddSample sample) {
  OddSample& known = odd[sample.index];
  if (sample.factor > known.factor) known = std::move(sample);
}

// Of the values above 0; NaN without any.
double median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !(v > 0) || !std::isfinite(v); });
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// A number that is not finite exceeds all.
double factor_of(double value, double median) {
  if (!std::isfinite(value)) return std::numeric_limits<double>::infinity();
  return median > 0 ? value / median : 0;
}

// The largest magnitude of each sample.
std::vector<double> reaches(const Tensor& samples) {
  std::vector<double> all;
  const std::int64_t n = samples.size(0);
  for (std::int64_t at = 0; at < n; at += kChunk) {
    const std::int64_t size = std::min(kChunk, n - at);
    const Tensor chunk = samples.narrow(0, at, size).to(DType::f32).reshape({size, samples.numel() / n});
    const std::vector<float> largest = amax(abs(chunk), {1}).to_vector<float>();
    all.insert(all.end(), largest.begin(), largest.end());
  }
  return all;
}

void add_large(Odd& odd, const Tensor& samples, const char* what) {
  if (!samples.is_floating() || samples.numel() == 0) return;
  const std::vector<double> all = reaches(samples);
  const double usual = median(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (const double factor = factor_of(all[i], usual); factor > kLarge)
      add(odd, {static_cast<std::int64_t>(i), factor,
                fmt::format("its {} reach {:.3g}, those of the median sample {:.3g}", what, all[i], usual)});
}

// The samples with a large loss in the batches with a large loss, of the initial model in evaluation.
void add_costly(Odd& odd, const MakeModel& make_model, const data::Dataset& train, const Objective& objective,
                std::uint64_t seed, const Options& options) {
  Generator generator(seed);
  const GeneratorScope scope(generator);
  const std::shared_ptr<nn::Module> model = make_model();
  model->to(options.device);
  model->eval();
  const NoGrad off;
  const auto loss_at = [&](std::int64_t first, std::int64_t size) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(size));
    std::ranges::generate(rows, [first]() mutable { return first++; });
    data::Batch batch = data::take(train, rows);
    batch.inputs = batch.inputs.to(options.device);
    batch.targets = batch.targets.to(options.device);
    for (auto& [field, values] : batch.fields) values = values.to(options.device);
    return loss_of(objective.loss, outputs_of(*model, batch, !objective.loss.is_output())).item();
  };
  const std::int64_t n = train.size();
  std::vector<double> losses;
  for (std::int64_t at = 0; at < n; at += options.batch) losses.push_back(loss_at(at, std::min(options.batch, n - at)));
  const double usual = median(losses);
  std::vector<std::pair<double, std::int64_t>> costly;
  for (std::size_t i = 0; i < losses.size(); ++i)
    if (const double factor = factor_of(losses[i], usual); factor > kCostlyBatch)
      costly.emplace_back(factor, static_cast<std::int64_t>(i));
  std::ranges::sort(costly, std::greater());
  costly.resize(std::min(costly.size(), kMostBatches));
  for (const auto& [factor, batch] : costly)
    for (std::int64_t i = batch * options.batch; i < std::min((batch + 1) * options.batch, n); ++i) {
      const double loss = loss_at(i, 1);
      if (const double by = factor_of(loss, usual); by > kCostly)
        add(odd, {i, by, fmt::format("the initial model's loss is {:.3g} for it, {:.3g} for others", loss, usual)});
    }
}

// The samples of each batch of the run.
std::vector<std::vector<std::int64_t>> batches_of(std::int64_t samples, std::size_t count, std::uint64_t seed,
                                                  const Options& options) {
  std::vector<std::vector<std::int64_t>> all;
  const auto note = [&all](const std::vector<std::int64_t>& indices) {
    all.push_back(indices);
    std::ranges::sort(all.back());
    return data::Batch{};
  };
  data::DataLoader loader(samples, note, {.batch = options.batch, .shuffle = true, .seed = seed, .prefetch = false});
  data::Batch batch;
  while (all.size() < count) loader.next(batch);
  return all;
}

// The loss of a step in units of the median of the steps before.
double jump_at(const std::vector<double>& loss, std::size_t step) {
  const auto at = loss.begin() + static_cast<std::ptrdiff_t>(step);
  return factor_of(*at, median({at - std::min<std::ptrdiff_t>(kBefore, at - loss.begin()), at}));
}

void add_jumps(Odd& odd, std::int64_t samples, std::uint64_t seed, const Options& options, const Result& run) {
  const std::vector<double>& loss = run.curve.loss;
  const auto epoch = static_cast<std::size_t>((samples + options.batch - 1) / options.batch);
  const auto batches = batches_of(samples, loss.size(), seed, options);
  std::vector<std::int64_t> common;
  std::size_t jumps = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t first = 0; first + epoch <= loss.size(); first += epoch) {
    std::size_t highest = first;
    for (std::size_t i = first; i < first + epoch; ++i)
      if (jump_at(loss, i) > jump_at(loss, highest)) highest = i;
    const double jump = jump_at(loss, highest);
    if (!(jump > kJump)) continue;
    std::vector<std::int64_t> both;
    std::ranges::set_intersection(batches[highest], common, std::back_inserter(both));
    common = jumps == 0 ? batches[highest] : both;
    least = std::min(least, jump);
    ++jumps;
  }
  if (jumps < 2 || common.size() > kFewInCommon) return;
  for (const std::int64_t i : common)
    add(odd, {i, least, fmt::format("the loss jumps {:.3g}-fold at its batch in each of {} epochs", least, jumps)});
}

}  // namespace

std::vector<OddSample> odd_samples(const MakeModel& make_model, const LabData& data, std::uint64_t seed,
                                   const Options& options, const Result& run) {
  const Objective objective = objective_of(data, options.loss, options.metric);
  const data::Dataset train = data.load(seed).train;
  Odd odd;
  add_jumps(odd, train.size(), seed, options, run);
  if (train.fields.empty()) {
    add_large(odd, train.inputs, "inputs");
    add_large(odd, train.targets, "targets");
  }
  for (const auto& [field, values] : train.fields) add_large(odd, values, field.c_str());
  add_costly(odd, make_model, train, objective, seed, options);
  std::vector<OddSample> all;
  for (auto& [index, sample] : odd) all.push_back(std::move(sample));
  if (all.size() > kMost && static_cast<double>(all.size()) > kMostOfAll * static_cast<double>(train.size())) return {};
  std::ranges::stable_sort(all, std::greater(), &OddSample::factor);
  all.resize(std::min(all.size(), kMost));
  return all;
}

LabData without(const LabData& data, const std::vector<std::int64_t>& samples) {
  LabData rest = data;
  rest.load = [load = data.load, samples](std::uint64_t seed) {
    data::Split split = load(seed);
    std::vector<std::int64_t> kept;
    for (std::int64_t i = 0; i < split.train.size(); ++i)
      if (std::ranges::find(samples, i) == samples.end()) kept.push_back(i);
    const data::Batch batch = data::take(split.train, kept);
    split.train.inputs = batch.inputs;
    split.train.targets = batch.targets;
    split.train.fields = batch.fields;
    return split;
  };
  return rest;
}

}  // namespace gradual::lab
