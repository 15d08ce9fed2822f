// A second value for every tensor of a program: the elements of each storage in f64 (integers and bool keep their
// dtype). Views share them as they share their storage.
#pragma once

#include <map>

#include "../core/tensor/tensor.h"

namespace gradual::inspect {

class Mirror {
 public:
  // The mirrored numbers of `t`, to be read: a view with its sizes, on the CPU. For a storage that is new, or that was
  // written without a call of written(), they start as its own numbers.
  Tensor of(const Tensor& t);
  // Gives the storage of `t` numbers that nothing else shares: then views from of() may be written.
  void own(const Tensor& t);
  // Sets the mirrored numbers of `t` to `numbers`, which have t's sizes and any strides. They may stay shared with
  // `numbers`, with another tensor or with a copy of this mirror: writers call own().
  void set(const Tensor& t, const Tensor& numbers);
  // Records that an observed op has written `t`.
  void written(const Tensor& t);
  bool knows(const Tensor& t) const;
  void forget(const Tensor& t);                                                                // its numbers start anew
  void forget_at(const void* address) { storages_.erase(static_cast<const char*>(address)); }  // of a freed storage

 private:
  struct Entry {
    std::uint64_t id = 0;
    std::uint32_t version = 0;
    const char* end = nullptr;
    Tensor numbers = {};  // [elements of the storage]
  };
  Entry& entry_of(const Tensor& t, bool fresh);

  // By address: a new storage replaces a freed one at the same address.
  std::map<const char*, Entry> storages_;
};

// A row-major copy of `t` in f64 on the CPU (integers and bool keep their dtype); empty for an undefined tensor.
Tensor f64_of(const Tensor& t);

}  // namespace gradual::inspect
