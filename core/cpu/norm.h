// What the norms share: parameters in the compute type, and the rows of batch_norm.cpp.
#pragma once

#include <optional>

#include "../op.h"
#include "rows.h"

namespace gradual::cpu {

// A weight, bias or statistic as T; false where it is absent.
template <class T> class Parameter {
 public:
  explicit Parameter(const Tensor& t) {
    if (t.defined()) data_ = loaded_.emplace(t, Loaded<T>::As::rows).data();
  }
  explicit operator bool() const { return data_ != nullptr; }
  T operator[](std::int64_t i) const { return data_[i]; }

 private:
  std::optional<Loaded<T>> loaded_;
  const T* data_ = nullptr;
};

template <class T> void store_parameter(Tensor& out, const T* values) {
  store(out.dtype(), values, out.raw(), 1, out.numel(), counts_for(dtype_of<T>, out.dtype()));
}

void batch_norm(const OpCall& call, Outputs& out);
void batch_norm_backward(const OpCall& call, Outputs& out);

}  // namespace gradual::cpu
