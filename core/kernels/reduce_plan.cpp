#include "reduce_plan.h"

namespace gradual::cpu {

Plan make_plan(std::span<const Tensor* const> operands, std::uint32_t dims) {
  const Tensor& x = *operands[0];
  const bool none = x.numel() == 0;  // then an address stands in for the elements that there are not
  const auto loop = [&](bool reduced) {
    Shape sizes;
    Tensor views[kMaxOperands];
    const Tensor* pointers[kMaxOperands];
    for (int d = 0; d < x.dim(); ++d)
      if ((dims >> d & 1) == static_cast<std::uint32_t>(reduced)) sizes.push_back(x.sizes()[d]);
    for (std::size_t k = 0; k < operands.size(); ++k) {
      const Tensor& t = *operands[k];
      Shape strides;
      for (int d = 0; d < x.dim(); ++d)
        if ((dims >> d & 1) == static_cast<std::uint32_t>(reduced)) strides.push_back(none ? 0 : t.strides()[d]);
      const Tensor elements = none ? empty({}, {.dtype = t.dtype(), .device = t.device()}) : t;
      views[k] = as_strided(elements, sizes, strides, elements.offset());
      pointers[k] = &views[k];
    }
    return make_loop(sizes, {pointers, operands.size()}, !reduced);
  };
  Plan p{loop(false), loop(true), x.dtype()};
  const int last = p.kept.ndim - 1;
  const bool side_by_side = p.kept.view[0].strides[last] == 1 || p.count() < kMinColumns;
  p.columns = p.kept.sizes[last] >= kMinColumns && side_by_side && p.count() > 1;
  return p;
}

Tensor reduced_last(const Tensor& x, std::uint32_t dims) {
  Shape sizes, strides;
  for (const bool reduced : {false, true})
    for (int d = 0; d < x.dim(); ++d)
      if ((dims >> d & 1) == static_cast<std::uint32_t>(reduced))
        sizes.push_back(x.sizes()[d]), strides.push_back(x.strides()[d]);
  return as_strided(x, sizes, strides, x.offset());
}

}  // namespace gradual::cpu
