// Batches of a dataset in a seeded order, prefetched by a background thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "../core/files/state_dict.h"
#include "dataset.h"

namespace gradual::data {

struct DataLoaderOptions {
  std::int64_t batch = 32;
  bool shuffle = false;
  std::uint64_t seed = 0;  // of the order, which depends on seed and epoch alone
  bool drop_last = false;  // drops an epoch's last batch if it is smaller than the others
  Device device = {};      // of the batches; a GPU receives the next batch while it computes
  bool prefetch = true;    // a background thread makes the next batch in advance; false: on demand
};

class DataLoader {
 public:
  // Makes the batch of the given samples. May run on the background thread, one call at a time. During the call
  // default_generator() is a generator of this batch, so random augmentation does not depend on `prefetch` and is the
  // same after a resume.
  using Fetch = std::function<Batch(const std::vector<std::int64_t>& indices)>;

  explicit DataLoader(Dataset dataset, DataLoaderOptions options = {});
  DataLoader(std::int64_t samples, Fetch fetch, DataLoaderOptions options = {});
  ~DataLoader();
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  // The next batch of this epoch. Returns false at its end; the following call begins the next epoch. Rethrows
  // exceptions of `fetch`, also from the background thread; the next call then tries the same batch again.
  bool next(Batch& batch);

  std::int64_t size() const;      // batches in an epoch
  std::int64_t epoch() const;     // from 0
  std::int64_t position() const;  // number of batches returned in this epoch

  void start_epoch(std::int64_t epoch);  // goes to the start of any epoch, also the current one

  // Seed, epoch and position. A loader over the same data that loads it continues with the next batch, also in the
  // middle of an epoch. Error if samples, batch, shuffle or drop_last differ.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  // for (const Batch& b : loader): the rest of this epoch (the whole epoch, unless a break or a resume left it in the
  // middle).
  class Iterator {
   public:
    explicit Iterator(DataLoader* loader) : loader_(loader) { ++*this; }
    const Batch& operator*() const { return batch_; }
    const Batch* operator->() const { return &batch_; }
    Iterator& operator++() {
      if (!loader_->next(batch_)) loader_ = nullptr;
      return *this;
    }
    struct End {};
    friend bool operator==(const Iterator& i, End) { return i.loader_ == nullptr; }

   private:
    DataLoader* loader_;
    Batch batch_;
  };
  Iterator begin() { return Iterator(this); }
  Iterator::End end() const { return {}; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradual::data
