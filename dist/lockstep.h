// Functions that run as if at once and meet on their way: each has a thread, and one of them runs at a time, in order,
// until it meets the others or ends. The shards of a batch run so where batch norm needs statistics of all of them.
#pragma once

#include <functional>
#include <vector>

#include "../core/tensor/tensor.h"

namespace gradual::dist {

using Meet = std::function<Tensor(const Tensor& own)>;

// Runs f(0, meet) to f(n - 1, meet), which meet equally often. `join` receives what each brought to a meeting, in order,
// and returns what all get; swap(k) is called before and after each stretch of f(k). Both run on the caller's thread,
// whose ThreadState and observers the others have. Rethrows the first exception, after all have ended.
void in_lockstep(int n, const std::function<void(int, const Meet&)>& f,
                 const std::function<Tensor(const std::vector<Tensor>&)>& join, const std::function<void(int)>& swap);

}  // namespace gradual::dist
