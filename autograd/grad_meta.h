// What autograd keeps with a tensor: its place on the tape and its gradient.
#pragma once

#include "node.h"

namespace gradual {

struct GradMeta : GradMetaBase, Pooled<GradMeta> {
  ~GradMeta() override;
  Tensor grad;  // leaves only
  Edge edge;    // where this tensor's gradient flows; a leaf's own node gathers it
  bool requires_grad = false;
};

// Null where autograd knows nothing of the tensor.
inline GradMeta* grad_meta(const Tensor& t) {
  return t.defined() ? static_cast<GradMeta*>(t.unsafe_impl()->grad_meta.get()) : nullptr;
}
GradMeta& ensure_grad_meta(const Tensor& t);
inline bool needs_grad(const Tensor& t) {
  const GradMeta* m = grad_meta(t);
  return m && m->requires_grad;
}
// Makes `t` output `output` of `node`.
void set_history(const Tensor& t, Ref<Node> node, std::uint32_t output);
// The same numbers without history.
Tensor detached(const Tensor& t);

}  // namespace gradual
