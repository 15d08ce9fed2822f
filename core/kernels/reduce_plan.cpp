#include "reduce_plan.h"

namespace gradual::cpu {

Plan make_plan(std::span<const Tensor* const> operands, std::uint32_t dims) {
  const Tensor& x = *operands[0];
  const auto loop = [&](bool reduced) {
    Loop all;
    all.operands = static_cast<int>(operands.size());
    for (int k = 0; k < all.operands; ++k) {
      all.view[k].data = static_cast<char*>(operands[k]->raw());
      all.view[k].dtype = operands[k]->dtype();
    }
    for (int d = 0; d < x.dim(); ++d) {
      if ((dims >> d & 1) != static_cast<std::uint32_t>(reduced)) continue;
      for (int k = 0; k < all.operands; ++k) all.view[k].strides[all.ndim] = operands[k]->strides()[d];
      all.sizes[all.ndim++] = x.sizes()[d];
      all.numel *= x.sizes()[d];
    }
    simplify(all, reduced);
    return all;
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
      if ((dims >> d & 1) == static_cast<std::uint32_t>(reduced)) {
        sizes.push_back(x.sizes()[d]);
        strides.push_back(x.strides()[d]);
      }
  return as_strided(x, sizes, strides, x.offset());
}

}  // namespace gradual::cpu
