#include "data_loader.h"

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

struct Step {
  std::int64_t epoch = 0;
  std::int64_t position = 0;
};

// Makes any batch of any epoch. It is used by one thread at a time.
class Maker {
 public:
  Maker(std::int64_t samples, DataLoader::Fetch fetch, const DataLoaderOptions& options)
      : samples_(samples), fetch_(std::move(fetch)), options_(options) {}

  std::int64_t batches() const {
    const std::int64_t extra = options_.drop_last ? 0 : options_.batch - 1;
    return (samples_ + extra) / options_.batch;
  }

  Batch make(Step at) {
    if (options_.shuffle && at.epoch != order_epoch_) {
      Generator g;
      g.set_state({.seed = options_.seed, .stream = kOrderStream + static_cast<std::uint64_t>(at.epoch)});
      order_ = randperm(samples_, g).to_vector<std::int64_t>();
      order_epoch_ = at.epoch;
    }
    std::vector<std::int64_t> indices;
    const std::int64_t begin = at.position * options_.batch;
    for (std::int64_t i = begin; i < std::min(begin + options_.batch, samples_); ++i)
      indices.push_back(options_.shuffle ? order_[static_cast<std::size_t>(i)] : i);

    Generator g;  // 2^20 streams for each batch
    const auto number = static_cast<std::uint64_t>(at.epoch * batches() + at.position);
    g.set_state({.seed = options_.seed, .stream = kFetchStream + (number << 20)});
    const GeneratorScope scope(g);
    return fetch_(indices);
  }

 private:
  std::int64_t samples_;
  DataLoader::Fetch fetch_;
  DataLoaderOptions options_;
  std::vector<std::int64_t> order_;
  std::int64_t order_epoch_ = -1;
};

// Makes batches ahead, from one step on and across the ends of epochs, and ends with the first exception.
class Prefetcher {
 public:
  Prefetcher(Maker& maker, Step from, int depth)
      : maker_(maker), depth_(static_cast<std::size_t>(depth)), thread_([this, from] { run(from); }) {}
  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  Batch take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || error_; });
    if (ready_.empty()) std::rethrow_exception(error_);
    Batch batch = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return batch;
  }

 private:
  void run(Step at) {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ready_.size() < depth_ || stop_; });
        if (stop_) return;
      }
      Batch batch;
      std::exception_ptr error;
      try {
        batch = maker_.make(at);
      } catch (...) { error = std::current_exception(); }
      {
        const std::lock_guard lock(mutex_);
        error_ = error;
        if (!error) ready_.push_back(std::move(batch));
      }
      changed_.notify_all();
      if (error) return;
      if (++at.position == maker_.batches()) at = {at.epoch + 1, 0};
    }
  }

  Maker& maker_;
  std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;  // last: it starts when all else is there
};

void check(std::int64_t samples, const DataLoaderOptions& o) {
  if (samples < 0) fail("DataLoader: " + std::to_string(samples) + " samples");
  if (o.batch < 1) fail("DataLoader: batch " + std::to_string(o.batch) + " is not allowed; it must be at least 1");
  if (o.prefetch < 0) fail("DataLoader: prefetch " + std::to_string(o.prefetch) + " is not allowed; 0 turns it off");
}

}  // namespace

struct DataLoader::Impl {
  std::int64_t samples;
  DataLoaderOptions options;
  Fetch fetch;
  Maker maker;
  Step at;
  std::unique_ptr<Prefetcher> ahead;  // null until a batch is asked for, and after an exception or a jump

  Impl(std::int64_t n, Fetch f, const DataLoaderOptions& o) : samples(n), options(o), fetch(f), maker(n, f, o) {}

  void jump(Step to) {
    ahead.reset();
    at = to;
  }
};

DataLoader::DataLoader(std::int64_t samples, Fetch fetch, DataLoaderOptions options) {
  check(samples, options);
  if (!fetch) fail("DataLoader: the function that makes a batch is empty");
  impl_ = std::make_unique<Impl>(samples, std::move(fetch), options);
}

DataLoader::DataLoader(Dataset dataset, DataLoaderOptions options)
    : DataLoader(
          dataset.size(), [dataset](const std::vector<std::int64_t>& indices) { return take(dataset, indices); },
          options) {}

DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

bool DataLoader::next(Batch& batch) {
  Impl& s = *impl_;
  if (s.at.position >= size()) {
    s.at = {s.at.epoch + 1, 0};  // what was made ahead goes on there
    return false;
  }
  if (s.options.prefetch == 0) {
    batch = s.maker.make(s.at);
  } else {
    if (!s.ahead) s.ahead = std::make_unique<Prefetcher>(s.maker, s.at, s.options.prefetch);
    try {
      batch = s.ahead->take();
    } catch (...) {
      s.ahead.reset();
      throw;
    }
  }
  ++s.at.position;
  return true;
}

std::int64_t DataLoader::size() const { return impl_->maker.batches(); }
std::int64_t DataLoader::samples() const { return impl_->samples; }
std::int64_t DataLoader::epoch() const { return impl_->at.epoch; }
std::int64_t DataLoader::position() const { return impl_->at.position; }
const DataLoaderOptions& DataLoader::options() const { return impl_->options; }

void DataLoader::restart() { impl_->jump({impl_->at.epoch, 0}); }

void DataLoader::start_epoch(std::int64_t epoch) {
  if (epoch < 0) fail("DataLoader: epoch " + std::to_string(epoch) + "; they count from 0");
  impl_->jump({epoch, 0});
}

StateDict DataLoader::state_dict() const {
  StateDict state;
  state.set("samples", impl_->samples);
  state.set("batch", impl_->options.batch);
  state.set("shuffle", impl_->options.shuffle);
  state.set("drop_last", impl_->options.drop_last);
  state.set("seed", impl_->options.seed);
  state.set("epoch", impl_->at.epoch);
  state.set("position", impl_->at.position);
  return state;
}

void DataLoader::load_state_dict(const StateDict& state) {
  const StateDict mine = state_dict();
  for (const char* key : {"samples", "batch", "shuffle", "drop_last"}) {
    if (state.integer(key) != mine.integer(key))
      fail(std::string("DataLoader: the state has ") + key + " " + std::to_string(state.integer(key)) +
           ", this loader " + std::to_string(mine.integer(key)));
  }
  const Step to{state.integer("epoch"), state.integer("position")};
  if (to.epoch < 0 || to.position < 0 || to.position > size())
    fail("DataLoader: the state stands at batch " + std::to_string(to.position) + " of epoch " +
         std::to_string(to.epoch) + "; an epoch has " + std::to_string(size()) + " batches");
  DataLoaderOptions options = impl_->options;
  options.seed = state.natural("seed");
  auto fresh = std::make_unique<Impl>(impl_->samples, impl_->fetch, options);
  fresh->at = to;
  impl_ = std::move(fresh);
}

}  // namespace gradual::data
