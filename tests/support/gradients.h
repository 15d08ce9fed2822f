// The gradient rows as functions: their tensors, then their attributes.
#pragma once

#include <gradual/core/ops/dispatch.h>

namespace gradual {

inline Tensor max_pool2d_backward(const Tensor& dy, const Tensor& indices, const PoolAttrs& attrs) {
  return call_row(OpId::max_pool2d_backward, attrs, dy, indices)[0];
}
inline Tensor avg_pool2d_backward(const Tensor& dy, const PoolAttrs& attrs) {
  return call_row(OpId::avg_pool2d_backward, attrs, dy)[0];
}
inline Tensor adaptive_avg_pool2d_backward(const Tensor& dy, const PoolAttrs& attrs) {
  return call_row(OpId::adaptive_avg_pool2d_backward, attrs, dy)[0];
}
inline Outputs batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                                   const Tensor& invstd, const NormAttrs& attrs, const Tensor& bias = {}) {
  return call_row(OpId::batch_norm_backward, attrs, dy, x, weight, mean, invstd, bias);
}
inline Outputs layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                                   const Tensor& invstd, const NormAttrs& attrs) {
  return call_row(OpId::layer_norm_backward, attrs, dy, x, weight, mean, invstd);
}
inline Outputs rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& invrms,
                                 const NormAttrs& attrs) {
  return call_row(OpId::rms_norm_backward, attrs, dy, x, weight, invrms);
}
inline Tensor softmax_backward(const Tensor& dy, const Tensor& y, int dim) {
  return call_row(OpId::softmax_backward, DimAttrs{dim}, dy, y)[0];
}
inline Tensor log_softmax_backward(const Tensor& dy, const Tensor& y, int dim) {
  return call_row(OpId::log_softmax_backward, DimAttrs{dim}, dy, y)[0];
}
inline Outputs flash_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionAttrs& attrs) {
  return call_row(OpId::flash_attention, attrs, q, k, v);
}
inline Outputs flash_attention_backward(const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                                        const Tensor& y, const Tensor& logsumexp, const AttentionAttrs& attrs) {
  return call_row(OpId::flash_attention_backward, attrs, dy, q, k, v, y, logsumexp);
}
inline Tensor cross_entropy_backward(const Tensor& dy, const Tensor& log_probabilities, const Tensor& classes,
                                     const CrossEntropyOptions& options) {
  return call_row(OpId::cross_entropy_backward, CrossEntropyAttrs{options}, dy, log_probabilities, classes)[0];
}
inline Tensor slice_backward(const Tensor& dy, const SliceAttrs& attrs) {
  return call_row(OpId::slice_backward, attrs, dy)[0];
}

}  // namespace gradual
