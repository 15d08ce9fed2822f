#include "data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace gradual::data {
namespace {

// Streams of the seed's generator that nothing else reaches: a model initialised with the same seed counts from 0.
constexpr std::uint64_t kOrderStream = std::uint64_t{1} << 62;
constexpr std::uint64_t kFetchStream = std::uint64_t{1} << 63;

// Calls `make` ahead of time on a thread of its own, again and again until it throws.
class Prefetcher {
 public:
  Prefetcher(std::function<Batch()> make, int depth)
      : make_(std::move(make)),
        depth_(static_cast<std::size_t>(depth)),
        thread_([this](const std::stop_token& stop) { run(stop); }) {}

  // The next batch, or what was thrown instead.
  Batch take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty(); });
    auto [batch, error] = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    if (error) std::rethrow_exception(error);
    return batch;
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (bool good = true; good && changed_.wait(lock, stop, [&] { return ready_.size() < depth_; });) {
      lock.unlock();
      std::pair<Batch, std::exception_ptr> made;
      try {
        made.first = make_();
      } catch (...) { made.second = std::current_exception(); }
      good = !made.second;
      lock.lock();
      ready_.push_back(std::move(made));
      changed_.notify_all();
    }
  }

  std::function<Batch()> make_;
  std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::pair<Batch, std::exception_ptr>> ready_;
  std::jthread thread_;  // last: it starts when all else is there, and ends first
};

}  // namespace

struct DataLoader::Impl {
  std::int64_t samples;
  Fetch fetch;
  DataLoaderOptions options;
  std::int64_t epoch = 0, position = 0;
  // Of `epoch_of_order`, where it shuffles. Used by one thread at a time.
  std::vector<std::int64_t> order = {};
  std::int64_t epoch_of_order = -1;
  std::unique_ptr<Prefetcher> ahead = {};  // null until a batch is asked for, and after an exception or a jump

  std::int64_t batches() const {
    const std::int64_t extra = options.drop_last ? 0 : options.batch - 1;
    return (samples + extra) / options.batch;
  }

  // Any batch, counted from the start of epoch 0.
  Batch make(std::int64_t number) {
    const std::int64_t of_epoch = number / batches();
    if (options.shuffle && of_epoch != epoch_of_order) {
      Generator g;
      g.set_state({.seed = options.seed, .stream = kOrderStream + static_cast<std::uint64_t>(of_epoch)});
      order = randperm(samples, g).to_vector<std::int64_t>();
      epoch_of_order = of_epoch;
    }
    std::vector<std::int64_t> indices;
    const std::int64_t begin = number % batches() * options.batch;
    for (std::int64_t i = begin; i < std::min(begin + options.batch, samples); ++i)
      indices.push_back(options.shuffle ? order[static_cast<std::size_t>(i)] : i);

    Generator g;  // 2^20 streams for each batch
    g.set_state({.seed = options.seed, .stream = kFetchStream + (static_cast<std::uint64_t>(number) << 20)});
    const GeneratorScope scope(g);
    return fetch(indices);
  }

  Batch next() {
    std::int64_t number = epoch * batches() + position;
    if (options.prefetch == 0) return make(number);
    if (!ahead)
      ahead = std::make_unique<Prefetcher>([this, number]() mutable { return make(number++); }, options.prefetch);
    try {
      return ahead->take();
    } catch (...) {
      ahead.reset();
      throw;
    }
  }
};

DataLoader::DataLoader(std::int64_t samples, Fetch fetch, DataLoaderOptions o) {
  if (samples < 0) fail(fmt::format("DataLoader: {} samples", samples));
  if (o.batch < 1) fail(fmt::format("DataLoader: batch {} is not allowed; it must be at least 1", o.batch));
  if (o.prefetch < 0) fail(fmt::format("DataLoader: prefetch {} is not allowed; 0 turns it off", o.prefetch));
  if (!fetch) fail("DataLoader: the function that makes a batch is empty");
  impl_ = std::make_unique<Impl>(Impl{.samples = samples, .fetch = std::move(fetch), .options = o});
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
    ++impl_->epoch;  // what was made ahead goes on there
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
  if (epoch < 0) fail(fmt::format("DataLoader: epoch {}; they count from 0", epoch));
  impl_->ahead.reset();
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
      fail(fmt::format("DataLoader: the state has {} {}, this loader {}", key, given, own));
  }
  const std::int64_t epoch = state.integer("epoch"), position = state.integer("position");
  if (epoch < 0 || position < 0 || position > size())
    fail(fmt::format("DataLoader: the state stands at batch {} of epoch {}; an epoch has {} batches", position, epoch,
                     size()));
  const std::uint64_t seed = state.natural("seed");
  start_epoch(epoch);
  impl_->position = position;
  impl_->options.seed = seed;
  impl_->epoch_of_order = -1;
}

}  // namespace gradual::data
