// Batches of a dataset, in a seeded order, made ahead by a background thread.
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
  std::uint64_t seed = 0;  // of the order: epoch e has the same one for the same seed, whatever else happens
  bool drop_last = false;  // leaves out an epoch's last batch where it is smaller than the others
  Device device = {};      // where batches are put: a GPU gets the next one while it works on this one
  bool prefetch = true;    // a background thread makes the next batch ahead; false: each when it is asked for
};

class DataLoader {
 public:
  // Makes the batch of the given samples. May run on the background thread, one call at a time. There and here
  // default_generator() is one of this very batch's own, so that random augmentation does not depend on `prefetch`
  // and is the same again after a resume.
  using Fetch = std::function<Batch(const std::vector<std::int64_t>& indices)>;

  explicit DataLoader(Dataset dataset, DataLoaderOptions options = {});
  DataLoader(std::int64_t samples, Fetch fetch, DataLoaderOptions options = {});
  ~DataLoader();
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  // The next batch of this epoch; false at its end, and the call after that begins the next epoch. What `fetch`
  // throws comes out here, also from the background thread; the same batch is then tried again by the next call.
  bool next(Batch& batch);

  std::int64_t size() const;      // batches in an epoch
  std::int64_t epoch() const;     // from 0
  std::int64_t position() const;  // batches of this epoch that were handed out

  void start_epoch(std::int64_t epoch);  // goes to the start of any epoch, this one too

  // Seed, epoch and position. A loader over the same data that loads it goes on with the very batch that would have
  // come next, in the middle of an epoch too. Error where samples, batch, shuffle or drop_last differ.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  // for (const Batch& b : loader): what is left of this epoch (all of it, unless one stands in its middle after a
  // break or a resume).
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
