#include <cmath>
#include <limits>

#include "misuse.h"

using namespace gradual;

namespace test {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
Tensor six() { return arange(1, 7, 1, {.dtype = DType::f32}).reshape({2, 3}); }
Tensor image() { return ones({1, 2, 4, 4}); }
Tensor kernel() { return ones({3, 2, 3, 3}); }
Tensor classes(double value) { return full({2}, value, DType::i64); }
Tensor heads() { return ones({1, 2, 3, 4}); }

}  // namespace

Misuses layer_op_misuses() {
  return {
      // contractions
      {"matmul of a number", [] { return matmul(six(), scalar(1)); },
       "matmul: [2, 3] f32 x [] f32: a 0-d tensor has no matrix product; use *"},
      {"matmul of other inner sizes", [] { return matmul(six(), six()); },
       "matmul: [2, 3] f32 x [2, 3] f32: inner dimensions 3 and 2 differ; did you mean transpose(-2, -1) of"},
      {"matmul of other batches",
       [] {
         return matmul(ones({2, 1, 3}), ones({3, 3, 1}));
       },
       "matmul: [2] and [3] do not broadcast: sizes 2 and 3 at dim 0 differ and neither is 1"},
      {"matmul of integers", [] { return matmul(arange(0, 3), arange(0, 3)); },
       "matmul: [3] i64 x [3] i64: takes floating tensors; cast with to(DType::f32)"},
      {"matmul of an undefined tensor", [] { return matmul(six(), Tensor()); },
       "matmul: [2, 3] f32 x none: needs two tensors"},
      {"matmul of f8 with f32",
       [] {
         return matmul(six().to(DType::f8e4m3fn), ones({3, 1}));
       },
       "promote: f8e4m3fn with f32: f8 tensors never promote; cast one operand to the dtype that is meant"},
      {"linear of another width",
       [] {
         return linear(six(), ones({2, 4}));
       },
       "linear: [2, 3] f32 x [2, 4] f32 x none: the input's last size must be the weight's second, 4"},
      {"linear with a vector as weight", [] { return linear(six(), ones({3})); },
       "linear: [2, 3] f32 x [3] f32 x none: input 1 must be 2-d, given [3]"},
      {"linear without a weight", [] { return linear(six(), Tensor()); },
       "linear: [2, 3] f32 x none x none: needs a weight"},
      {"linear with another bias",
       [] {
         return linear(six(), ones({2, 3}), ones({3}));
       },
       "linear: [2, 3] f32 x [2, 3] f32 x [3] f32: bias must be [2], given [3]"},
      {"linear of a number",
       [] {
         return linear(scalar(1), ones({2, 3}));
       },
       "linear: [] f32 x [2, 3] f32 x none: the input's last size must be the weight's second, 3"},
      {"linear of integers",
       [] {
         return linear(arange(0, 3), ones({2, 3}));
       },
       "= f32: 3 3"},
      {"conv2d of a matrix", [] { return conv2d(six(), kernel()); },
       "conv2d: [2, 3] f32 x [3, 2, 3, 3] f32 x none: input 0 must be 4-d, given [2, 3]"},
      {"conv2d of other channels",
       [] {
         return conv2d(ones({1, 3, 4, 4}), kernel());
       },
       "conv2d: [1, 3, 4, 4] f32 x [3, 2, 3, 3] f32 x none: 3 input channels, weight for 2 x 1 groups, 3"},
      {"conv2d with another bias", [] { return conv2d(image(), kernel(), ones({2})); },
       "conv2d: [1, 2, 4, 4] f32 x [3, 2, 3, 3] f32 x [2] f32: bias must be [3], given [2]"},
      {"conv2d with a kernel larger than the image",
       [] {
         return conv2d(ones({1, 2, 2, 2}), kernel());
       },
       "conv2d: [1, 2, 2, 2] f32 x [3, 2, 3, 3] f32 x none: the kernel is larger than the padded input"},
      {"conv2d by steps of 0", [] { return conv2d(image(), kernel(), {}, {.stride = 0}); },
       "conv2d: [1, 2, 4, 4] f32 x [3, 2, 3, 3] f32 x none: stride and dilation must be at least 1, padding"},
      {"conv2d with a negative padding", [] { return conv2d(image(), kernel(), {}, {.padding = -1}); },
       "conv2d: [1, 2, 4, 4] f32 x [3, 2, 3, 3] f32 x none: stride and dilation must be at least 1, padding"},
      {"conv2d with a huge padding", [] { return conv2d(image(), kernel(), {}, {.padding = kMost}); },
       "conv2d: [1, 2, 4, 4] f32 x [3, 2, 3, 3] f32 x none: stride and dilation must be at least 1, padding"},
      {"conv2d with a dilation of 0", [] { return conv2d(image(), kernel(), {}, {.dilation = 0}); },
       "conv2d: [1, 2, 4, 4] f32 x [3, 2, 3, 3] f32 x none: stride and dilation must be at least 1, padding"},
      {"conv2d with a huge dilation", [] { return conv2d(image(), kernel(), {}, {.dilation = kMost}); },
       "conv2d: [1, 2, 4, 4] f32 x [3, 2, 3, 3] f32 x none: stride and dilation must be at least 1, padding"},
      {"conv2d of no group", [] { return conv2d(image(), kernel(), {}, {.groups = 0}); },
       "conv2d: [1, 2, 4, 4] f32 x [3, 2, 3, 3] f32 x none: groups must be at least 1"},
      {"conv2d of groups that do not divide", [] { return conv2d(image(), kernel(), {}, {.groups = 2}); },
       "conv2d: [1, 2, 4, 4] f32 x [3, 2, 3, 3] f32 x none: 2 input channels, weight for 2 x 2 groups, 3"},
      {"conv2d with an empty kernel",
       [] {
         return conv2d(image(), ones({3, 2, 0, 0}));
       },
       "conv2d: [1, 2, 4, 4] f32 x [3, 2, 0, 0] f32 x none: the kernel must be at least 1 x 1"},
      {"attention of vectors", [] { return scaled_dot_product_attention(ones({4}), heads(), heads()); },
       "scaled_dot_product_attention: [4] f32 x [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x none: q, k and v must"},
      {"attention of other head sizes",
       [] {
         return scaled_dot_product_attention(heads(), ones({1, 2, 3, 5}), heads());
       },
       "matmul: [1, 2, 3, 4] f32 x [1, 2, 5, 3] f32: inner dimensions 4 and 5 differ"},
      {"attention of other lengths",
       [] {
         return scaled_dot_product_attention(heads(), heads(), ones({1, 2, 5, 4}));
       },
       "matmul: [1, 2, 3, 3] f32 x [1, 2, 5, 4] f32: inner dimensions 3 and 5 differ"},
      {"attention with a mask of another shape",
       [] {
         return scaled_dot_product_attention(heads(), heads(), heads(), zeros({7, 7}, DType::bool_));
       },
       "where: [7, 7] and [1, 2, 3, 3] do not broadcast: sizes 7 and 3 at dim 3 differ and neither is 1"},
      {"attention with a mask of integers",
       [] {
         return scaled_dot_product_attention(heads(), heads(), heads(), zeros({3, 3}, DType::i64));
       },
       "scaled_dot_product_attention: [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x [3, 3] i64:"},
      {"attention with a dropout of 2",
       [] { return scaled_dot_product_attention(heads(), heads(), heads(), {}, {.dropout = 2}); },
       "scaled_dot_product_attention: [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x none:"},
      {"attention with a dropout of NaN",
       [] { return scaled_dot_product_attention(heads(), heads(), heads(), {}, {.dropout = NAN}); },
       "scaled_dot_product_attention: [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x none:"},
      {"attention with a scale of NaN",
       [] { return scaled_dot_product_attention(heads(), heads(), heads(), {}, {.scale = NAN}); },
       "scaled_dot_product_attention: [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x none: the"},
      {"attention without values", [] { return scaled_dot_product_attention(heads(), heads(), Tensor()); },
       "scaled_dot_product_attention: [1, 2, 3, 4] f32 x [1, 2, 3, 4] f32 x none x none: q, k and v must be"},
      // pooling
      {"max_pool2d of a matrix", [] { return max_pool2d(six()); },
       "max_pool2d: [2, 3] f32: input 0 must be 4-d, given [2, 3]"},
      {"max_pool2d of no window", [] { return max_pool2d(image(), {.kernel = 0}); },
       "max_pool2d: [1, 2, 4, 4] f32: kernel and stride must be at least 1"},
      {"max_pool2d by negative steps", [] { return max_pool2d(image(), {.kernel = 2, .stride = -1}); },
       "max_pool2d: [1, 2, 4, 4] f32: kernel and stride must be at least 1"},
      {"max_pool2d with a padding above half", [] { return max_pool2d(image(), {.kernel = 2, .padding = 2}); },
       "max_pool2d: [1, 2, 4, 4] f32: padding must be 0 to half the kernel"},
      {"max_pool2d of a window too large", [] { return max_pool2d(image(), {.kernel = 5}); },
       "max_pool2d: [1, 2, 4, 4] f32: the kernel is larger than the padded input"},
      {"avg_pool2d of integers",
       [] {
         return avg_pool2d(zeros({1, 1, 2, 2}, DType::i64));
       },
       "avg_pool2d: [1, 1, 2, 2] i64: takes floating tensors; cast with to(DType::f32)"},
      {"avg_pool2d of a negative window", [] { return avg_pool2d(image(), {.kernel = -2}); },
       "avg_pool2d: [1, 2, 4, 4] f32: kernel and stride must be at least 1"},
      {"adaptive_avg_pool2d to nothing", [] { return adaptive_avg_pool2d(image(), 0, 1); },
       "adaptive_avg_pool2d: [1, 2, 4, 4] f32: the output size must be at least 1 x 1"},
      {"adaptive_avg_pool2d of no pixels",
       [] {
         return adaptive_avg_pool2d(ones({1, 1, 0, 2}), 1, 1);
       },
       "adaptive_avg_pool2d: [1, 1, 0, 2] f32: the input has no pixels"},
      // normalisation
      {"batch_norm with eps NaN", [] { return batch_norm(six(), {}, {}, {}, {}, true, NAN).y; },
       "batch_norm: [2, 3] f32 x none x none x none x none: eps is nan; it must be at least 0 and finite"},
      {"batch_norm with a negative eps", [] { return batch_norm(six(), {}, {}, {}, {}, true, -1).y; },
       "batch_norm: [2, 3] f32 x none x none x none x none: eps is -1; it must be at least 0 and finite"},
      {"batch_norm with eps Inf", [] { return batch_norm(six(), {}, {}, {}, {}, true, INFINITY).y; },
       "batch_norm: [2, 3] f32 x none x none x none x none: eps is inf; it must be at least 0 and finite"},
      {"batch_norm in eval without statistics", [] { return batch_norm(six(), {}, {}, {}, {}, false).y; },
       "batch_norm: [2, 3] f32 x none x none x none x none: needs running mean and var when not training"},
      {"batch_norm of one value",
       [] {
         return batch_norm(ones({1, 3}), {}, {}, {}, {}, true).y;
       },
       "batch_norm: [1, 3] f32 x none x none x none x none: training needs more than one value per channel"},
      {"batch_norm of a vector", [] { return batch_norm(ones({3}), {}, {}, {}, {}, true).y; },
       "batch_norm: [3] f32 x none x none x none x none: the input must be [N, C, ..]"},
      {"batch_norm with another weight", [] { return batch_norm(six(), ones({2}), {}, {}, {}, true).y; },
       "batch_norm: [2, 3] f32 x [2] f32 x none x none x none: weight and bias must be [3], given [2]"},
      {"batch_norm with weights of f64", [] { return batch_norm(six(), ones({3}, DType::f64), {}, {}, {}, true).y; },
       "batch_norm: [2, 3] f32 x [3] f64 x none x none x none: parameters must be f32, given f64"},
      {"batch_norm of integers",
       [] {
         return batch_norm(zeros({2, 3}, DType::i64), {}, {}, {}, {}, true).y;
       },
       "batch_norm: [2, 3] i64 x none x none x none x none: takes f64, f32, f16 or bf16; cast with"},
      {"running statistics with a momentum of NaN",
       [] {
         batch_norm_update_(zeros({3}), ones({3}), scalar(0, {.dtype = DType::i64}), zeros({3}), ones({3}),
                            {.momentum = NAN, .count = 2});
       },
       "batch_norm_update_: [3] f32 x [3] f32 x [] i64 x [3] f32 x [3] f32: the momentum is nan; it must be"},
      {"running statistics with a momentum of 2",
       [] {
         batch_norm_update_(zeros({3}), ones({3}), scalar(0, {.dtype = DType::i64}), zeros({3}), ones({3}),
                            {.momentum = 2, .count = 2});
       },
       "batch_norm_update_: [3] f32 x [3] f32 x [] i64 x [3] f32 x [3] f32: the momentum is 2; it must be 0"},
      {"running statistics of one value",
       [] {
         batch_norm_update_(zeros({3}), ones({3}), scalar(0, {.dtype = DType::i64}), zeros({3}), ones({3}),
                            {.count = 1});
       },
       "batch_norm_update_: [3] f32 x [3] f32 x [] i64 x [3] f32 x [3] f32: an unbiased variance needs more"},
      {"layer_norm with eps NaN", [] { return layer_norm(six(), 1, {}, {}, NAN); },
       "layer_norm: [2, 3] f32 x none x none: eps is nan; it must be at least 0 and finite"},
      {"layer_norm with a negative eps", [] { return layer_norm(six(), 1, {}, {}, -1e-5); },
       "layer_norm: [2, 3] f32 x none x none: eps is -1e-05; it must be at least 0 and finite"},
      {"layer_norm over no dim", [] { return layer_norm(six(), 0); },
       "layer_norm: [2, 3] f32 x none x none: cannot normalise 0 trailing dims of [2, 3]"},
      {"layer_norm over too many dims", [] { return layer_norm(six(), 3); },
       "layer_norm: [2, 3] f32 x none x none: cannot normalise 3 trailing dims of [2, 3]"},
      {"layer_norm with another weight", [] { return layer_norm(six(), 1, ones({2})); },
       "layer_norm: [2, 3] f32 x [2] f32 x none: weight and bias must be [3], given [2]"},
      {"rms_norm with a negative eps", [] { return rms_norm(six(), 1, {}, -1); },
       "rms_norm: [2, 3] f32 x none: eps is -1; it must be at least 0 and finite"},
      {"rms_norm with eps NaN", [] { return rms_norm(six(), 1, {}, NAN); },
       "rms_norm: [2, 3] f32 x none: eps is nan; it must be at least 0 and finite"},
      {"softmax over a dim too far", [] { return softmax(six(), 2); },
       "softmax: dim 2 is out of range for a 2-d tensor; allowed are -2 to 1"},
      {"softmax of integers", [] { return softmax(arange(0, 3), 0); },
       "softmax: [3] i64: takes floating tensors; cast with to(DType::f32)"},
      {"log_softmax of bools", [] { return log_softmax(zeros({3}, DType::bool_), 0); },
       "log_softmax: [3] bool: takes floating tensors; cast with to(DType::f32)"},
      {"softmax of nothing", [] { return softmax(zeros({0}), 0); }, "= f32:"},
      // losses
      {"cross_entropy of too large a class", [] { return cross_entropy(six(), classes(3)); },
       "cross_entropy: [2, 3] f32 x [2] i64: class 3 in row 0; classes must be 0 to 2, or ignore_index -100"},
      {"cross_entropy of a negative class", [] { return cross_entropy(six(), classes(-1)); },
       "cross_entropy: [2, 3] f32 x [2] i64: class -1 in row 0; classes must be 0 to 2, or ignore_index -100"},
      {"cross_entropy of f32 classes", [] { return cross_entropy(six(), ones({2})); },
       "cross_entropy: [2, 3] f32 x [2] f32: classes must be i64, given f32"},
      {"cross_entropy of i32 classes", [] { return cross_entropy(six(), zeros({2}, DType::i32)); },
       "cross_entropy: [2, 3] f32 x [2] i32: classes must be i64, given i32"},
      {"cross_entropy of a vector", [] { return cross_entropy(ones({3}), classes(0)); },
       "cross_entropy: [3] f32 x [2] i64: input 0 must be 2-d, given [3]"},
      {"cross_entropy of too few classes", [] { return cross_entropy(six(), zeros({1}, DType::i64)); },
       "cross_entropy: [2, 3] f32 x [1] i64: classes must be [2], given [1]"},
      {"cross_entropy of images with other classes", [] { return cross_entropy(image(), classes(0)); },
       "cross_entropy: classes for logits [1, 2, 4, 4] must be [1, 4, 4], given [2]"},
      {"cross_entropy that ignores all", [] { return cross_entropy(six(), classes(-100)); }, "= f32: nan"},
      {"cross_entropy of nothing",
       [] {
         return cross_entropy(zeros({0, 3}), zeros({0}, DType::i64));
       },
       "= f32: nan"},
      {"cross_entropy with a smoothing of 2", [] { return cross_entropy(six(), classes(0), {.label_smoothing = 2}); },
       "cross_entropy: [2, 3] f32 x [2] i64: label_smoothing must be 0 to 1"},
      {"cross_entropy with a smoothing of NaN",
       [] { return cross_entropy(six(), classes(0), {.label_smoothing = NAN}); },
       "cross_entropy: [2, 3] f32 x [2] i64: label_smoothing must be 0 to 1"},
      {"mse_loss of other shapes", [] { return mse_loss(six(), ones({2})); },
       "mse_loss: [2, 3] f32 x [2] f32: input and target must have the same shape"},
      {"mse_loss of integers", [] { return mse_loss(arange(0, 3), arange(0, 3)); },
       "mse_loss: [3] i64 x [3] i64: takes floating tensors; cast with to(DType::f32)"},
      {"mse_loss of nothing", [] { return mse_loss(zeros({0}), zeros({0})); }, "= f32: nan"},
      {"l1_loss of an undefined target", [] { return l1_loss(six(), Tensor()); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"bce_loss of a probability above 1", [] { return bce_loss(full({2}, 1.5), ones({2})); },
       "bce_loss: 1.5 is not a probability; bce_with_logits_loss takes logits"},
      {"bce_loss of a negative probability", [] { return bce_loss(full({2}, -0.1), ones({2})); },
       "bce_loss: -0.10000000149011612 is not a probability; bce_with_logits_loss takes logits"},
      {"bce_loss of logits in f64", [] { return bce_loss(full({1}, 3, DType::f64), ones({1}, DType::f64)); },
       "bce_loss: 3 is not a probability; bce_with_logits_loss takes logits"},
      {"bce_loss of NaN", [] { return bce_loss(full({1}, NAN), ones({1})); }, "= f32: nan"},
      {"bce_loss of other shapes", [] { return bce_loss(full({2}, 0.5), ones({1})); },
       "bce_loss: [2] f32 x [1] f32: input and target must have the same shape"},
      {"bce_with_logits_loss of other shapes", [] { return bce_with_logits_loss(six(), ones({2})); },
       "bce_with_logits_loss: [2, 3] f32 x [2] f32: input and target must have the same shape"},
      // random
      {"dropout of 2", [] { return dropout(six(), 2); }, "dropout: p is 2; allowed are 0 to 1"},
      {"dropout of -0.1", [] { return dropout(six(), -0.1); }, "dropout: p is -0.1; allowed are 0 to 1"},
      {"dropout of NaN", [] { return dropout(six(), NAN); }, "dropout: p is nan; allowed are 0 to 1"},
      {"dropout of integers", [] { return dropout(arange(0, 3), 0.5); },
       "dropout: [3] i64: takes floating tensors; cast with to(DType::f32)"},
      {"dropout_add of a number", [] { return dropout_add(1, six(), 0.5); },
       "dropout_add: x is a number; it must be a tensor"},
      {"dropout_add of other sizes", [] { return dropout_add(ones({3}), six(), 0.5); },
       "dropout_add: [3] f32 x [2, 3] f32: the residual must be [3], given [2, 3]"},
      {"dropout_add without a residual", [] { return dropout_add(six(), Tensor(), 0.5); },
       "dropout_add: [2, 3] f32 x none: needs a residual"},
  };
}

}  // namespace test
