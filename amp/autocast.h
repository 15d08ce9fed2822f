// Automatic mixed precision as a scope:
//
//   amp::Autocast scope({.dtype = DType::f16});
//   Tensor loss = cross_entropy(model(x), y);      // contractions in f16, the loss in f32, all on the tape
//
// Regions nest; an inner region may disable the outer one. They are restored on exceptions and belong to their thread;
// a snapshot (core/ops/dispatch.h) passes them to another. Backward runs in forward's dtypes, inside a region or
// outside.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "policy.h"

namespace gradual::amp {

struct AutocastOptions {
  std::optional<DType> dtype = {};    // f16 or bf16; by default f16 on CUDA and bf16 on the CPU
  std::optional<Device> device = {};  // casts only tensors on devices of this type; none: on every device
  bool enabled = true;                // false: ops run as outside of any region
  PolicyTable table = {};
  std::function<void()> at_end = {};  // called when the outermost region ends without an exception
  bool cache = true;                  // casts a weight once per region (leaves that require grad; Category::casts)
};

class Autocast : Pinned {
 public:
  // Error for a dtype other than f16 and bf16.
  explicit Autocast(const AutocastOptions& options = {});
  ~Autocast();

 private:
  std::shared_ptr<struct Region> region_;
  int exceptions_;  // in flight when the region began
  StageScope stage_;
};

// The options of this thread's innermost region, enabled or not; null outside of any. Valid as
// long as the region lives.
const AutocastOptions* current_autocast();
// The dtype that autocast casts to on this device; none if autocast is off.
std::optional<DType> autocast_dtype(Device device = Device::cpu());
inline bool is_autocast_enabled(Device device = Device::cpu()) { return autocast_dtype(device).has_value(); }

// A callable that runs `function` under autocast: auto forward = amp::autocast({.dtype = DType::bf16}, model_forward);
template <class F> struct Autocasted {
  AutocastOptions options;
  mutable F function;
  template <class... A> decltype(auto) operator()(A&&... arguments) const {
    const Autocast scope(options);
    return function(std::forward<A>(arguments)...);
  }
};
template <class F> Autocasted<F> autocast(AutocastOptions options, F function) {
  return {std::move(options), std::move(function)};
}

}  // namespace gradual::amp
