#include "data_loader.h"

#include <algorithm>
#include <future>

#include "../core/support/throwf.h"

namespace gradual::data {

// Streams of the seed's generator that no other code uses: a model initialised with the same seed counts from 0.
constexpr std::uint64_t kOrderStream = std::uint64_t{1} << 62;
constexpr std::uint64_t kFetchStream = std::uint64_t{1} << 63;

struct DataLoader::Impl {
  std::int64_t samples;
  Fetch fetch;
  DataLoaderOptions options;
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  // The order of `epoch_of_order`, if it shuffles. Used by one thread at a time.
  std::vector<std::int64_t> order = {};
  std::int64_t epoch_of_order = -1;
  std::future<Batch> ahead = {};  // the next batch, after the first call of next(); none after an exception or a jump

  std::int64_t batches() const {
    const std::int64_t extra = options.drop_last ? 0 : options.batch - 1;
    return (samples + extra) / options.batch;
  }

  // Makes any batch, counted from the start of epoch 0.
  Batch make(std::int64_t number) {
    const std::int64_t of_epoch = number / batches();
    if (options.shuffle && of_epoch != epoch_of_order) {
      Generator g({.seed = options.seed, .stream = kOrderStream + static_cast<std::uint64_t>(of_epoch)});
      order = randperm(samples, g).to_vector<std::int64_t>();
      epoch_of_order = of_epoch;
    }
    std::vector<std::int64_t> indices;
    const std::int64_t begin = number % batches() * options.batch;
    for (std::int64_t i = begin; i < std::min(begin + options.batch, samples); ++i)
      indices.push_back(options.shuffle ? order[static_cast<std::size_t>(i)] : i);

    // 2^20 streams for each batch
    Generator g({.seed = options.seed, .stream = kFetchStream + (static_cast<std::uint64_t>(number) << 20)});
    const GeneratorScope scope(g);
    Batch batch = fetch(indices);
    for (Tensor* t : {&batch.inputs, &batch.targets})
      if (t->defined()) *t = t->to(options.device);
    for (auto& [field, values] : batch.fields) values = values.to(options.device);
    return batch;
  }

  Batch next() {
    const std::int64_t number = epoch * batches() + position;
    if (!options.prefetch) return make(number);
    Batch batch = ahead.valid() ? ahead.get() : make(number);
    ahead = std::async(std::launch::async, [this, number] {
      const device::OwnStream stream(options.device);
      return make(number + 1);
    });
    return batch;
  }
};

DataLoader::DataLoader(std::int64_t samples, Fetch fetch, DataLoaderOptions o) {
  if (samples < 0) throwf("DataLoader: {} samples", samples);
  if (o.batch < 1) throwf("DataLoader: batch {} is not allowed; it must be at least 1", o.batch);
  impl_ =
      std::make_unique<Impl>(Impl{.samples = samples,
                                  .fetch = not_null(std::move(fetch), "DataLoader: the function that makes a batch"),
                                  .options = o});
}

DataLoader::DataLoader(Dataset dataset, DataLoaderOptions options)
    : DataLoader(
          dataset.size(), [dataset](const std::vector<std::int64_t>& indices) { return take(dataset, indices); },
          options) {}

DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

bool DataLoader::next(Batch& batch) {
  if (impl_->position >= size()) {
    ++impl_->epoch;  // the prefetched batch belongs to it
    impl_->position = 0;
    return false;
  }
  batch = impl_->next();
  ++impl_->position;
  return true;
}

std::int64_t DataLoader::size() const { return impl_->batches(); }
std::int64_t DataLoader::epoch() const { return impl_->epoch; }
std::int64_t DataLoader::position() const { return impl_->position; }

void DataLoader::start_epoch(std::int64_t epoch) {
  if (epoch < 0) throwf("DataLoader: epoch {}; they count from 0", epoch);
  impl_->ahead = {};
  impl_->epoch = epoch;
  impl_->position = 0;
}

StateDict DataLoader::state_dict() const {
  StateDict state;
  state.set("samples", impl_->samples);
  state.set("batch", impl_->options.batch);
  state.set("shuffle", impl_->options.shuffle);
  state.set("drop_last", impl_->options.drop_last);
  state.set("seed", impl_->options.seed);
  state.set("epoch", impl_->epoch);
  state.set("position", impl_->position);
  return state;
}

void DataLoader::load_state_dict(const StateDict& state) {
  const StateDict mine = state_dict();
  for (const char* key : {"samples", "batch", "shuffle", "drop_last"}) {
    if (const auto given = state.integer(key), own = mine.integer(key); given != own)
      throwf("DataLoader: the state has {} {}, this loader {}", key, given, own);
  }
  const std::int64_t epoch = state.integer("epoch");
  const std::int64_t position = state.integer("position");
  if (epoch < 0 || position < 0 || position > size())
    throwf("DataLoader: the state is at batch {} of epoch {}; an epoch has {} batches", position, epoch, size());
  const std::uint64_t seed = state.natural("seed");
  start_epoch(epoch);
  impl_->position = position;
  impl_->options.seed = seed;
  impl_->epoch_of_order = -1;
}

}  // namespace gradual::data
