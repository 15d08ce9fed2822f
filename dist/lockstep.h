// Functions that take turns and exchange tensors: each has a thread, and one of them runs at a time, in order, until it
// calls meet() or ends. The shards of a batch run like this where batch norm needs statistics of all of them.
#pragma once

#include <functional>
#include <vector>

#include "../core/tensor/tensor.h"

namespace gradual::dist {

using Meet = std::function<Tensor(const Tensor& own)>;

// Runs f(0, meet) to f(n - 1, meet), which meet equally often. `join` receives what each brought to a meeting, in
// order, and returns what all get. swap(k) is called before and after each part of f(k) that runs without a stop. Both
// run on the caller's thread. The other threads have its ThreadState and observers. Rethrows the first exception, after
// all have ended.
void in_lockstep(int n, const std::function<void(int, const Meet&)>& f,
                 const std::function<Tensor(const std::vector<Tensor>&)>& join, const std::function<void(int)>& swap);

}  // namespace gradual::dist
