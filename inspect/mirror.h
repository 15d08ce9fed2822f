// A program in f64: a second value for every tensor, and ops without rounding.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "../core/ops/op.h"
#include "../core/tensor/freed_storages.h"
#include "../core/tensor/tensor.h"

namespace gradual::inspect {

// The elements of each storage in f64 (integers and bool keep their dtype). Views share them, as they share storage.
class Mirror {
 public:
  // `freed`, which must outlive the mirror, watches every storage that has numbers here; its owner calls forget() with
  // those that are gone. Null: numbers stay until the storage's address is used again.
  explicit Mirror(FreedStorages* freed = nullptr);

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
  void forget(const Tensor& t);  // its numbers start anew
  void forget(const FreedStorage& storage);

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
  FreedStorages* freed_;
};

// A row-major copy of `t` in f64 on the CPU (integers and bool keep their dtype); empty for an undefined tensor.
Tensor f64_of(const Tensor& t);
// The inputs of an optimizer's op for one parameter.
enum OptimizerInput : std::uint8_t { kWeight, kGradient, kMaster, kCompensation, kMoment };
// The value from which the next step starts, in f64: the FP32 master, or the parameter plus Kahan's compensation.
Tensor value_of(const Tensor& parameter, const Tensor& master, const Tensor& compensation);

// Runs the op of `call` on other inputs. Floating ones are f64 (f64_of() makes them), or f32 where that suffices (the
// effects of rounding in shadow.cpp). Attributes and random draws are the same. There is no accumulator, no rounding
// and no stochastic update; a cast to another float gives its input itself. In-place ops write their inputs. Neither
// observers nor the tape see the run. Custom ops are not allowed. Error if the op has no f64 form.
Outputs run_exactly(const OpCall& call, const std::vector<Tensor>& inputs);

// f of each input of a call.
template <class F> std::vector<Tensor> inputs_of(const OpCall& call, const F& f) {
  std::vector<Tensor> inputs;
  for (int i = 0; i < call.inputs.size(); ++i) inputs.push_back(f(call[i]));
  return inputs;
}

}  // namespace gradual::inspect
