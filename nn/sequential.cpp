#include "sequential.h"

namespace gradual::nn {

Module& Sequential::operator[](std::size_t i) {
  if (i >= size()) fail("Sequential: no module " + std::to_string(i) + "; there are " + std::to_string(size()));
  return *children()[i].module;
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const Child& child : children()) y = (*child.module)(y);
  return y;
}

}  // namespace gradual::nn
