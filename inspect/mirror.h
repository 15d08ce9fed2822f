// A second set of numbers for the tensors of a program: each storage's elements once more, in f64 (integers and bool as
// they are). Views share them as they share their storage.
#pragma once

#include <cstdint>
#include <map>

#include "../core/tensor/tensor.h"

namespace gradual::inspect {

class Mirror {
 public:
  // The numbers of `t`, a view with its sizes, on the CPU. A storage that is new, or that something unseen has written,
  // starts from the numbers that it holds.
  Tensor of(const Tensor& t);
  // Makes `numbers` those of `t`: t's sizes, any strides.
  void set(const Tensor& t, const Tensor& numbers);
  // An op that was seen has written `t`.
  void written(const Tensor& t);
  bool knows(const Tensor& t) const;
  Mirror clone() const;

 private:
  struct Entry {
    std::uint64_t id = 0;
    std::uint32_t version = 0;
    const char* end = nullptr;
    Tensor numbers = {};  // [elements of the storage]
  };
  Entry& entry_of(const Tensor& t, bool fresh);

  // By address: what is allocated anew at an address replaces what was freed there.
  std::map<const char*, Entry> storages_;
};

// `t` in f64 on the CPU, with the strides of `t` where it has no gaps; integers and bool as they are. A copy.
Tensor widened(const Tensor& t);

}  // namespace gradual::inspect
