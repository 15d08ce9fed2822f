// Functions that are made of other ops and have no row: amp and the tape see the parts. Names and meaning are
// PyTorch's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops.h"

namespace gradual {

// Elementwise, to bool; of integers false, false and true.
Tensor isnan(const Tensor& x, Loc loc = Loc::current());
Tensor isinf(const Tensor& x, Loc loc = Loc::current());
Tensor isfinite(const Tensor& x, Loc loc = Loc::current());
// Over `dims` (none: all), to bool: an element, or every element, is not 0 (NaN is not 0).
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false, Loc loc = Loc::current());
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false, Loc loc = Loc::current());
// The root of var(): PyTorch's std.
Tensor stddev(const Tensor& x, const Shape& dims = {}, bool keepdim = false, double correction = 1,
              Loc loc = Loc::current());
// Whether |a - b| <= atol + rtol |b| or a = b for every element; NaN is equal to nothing. a and b broadcast.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);

// x with `value` where the mask (bool, which broadcasts) is true.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value, Loc loc = Loc::current());
// Zeros left of the diagonal of the last two dims.
Tensor triu(const Tensor& x, std::int64_t diagonal = 0, Loc loc = Loc::current());
// The order of the elements along these dims reversed.
Tensor flip(const Tensor& x, const Shape& dims, Loc loc = Loc::current());
// Elements move `shift` places along `dim`; those that leave the end come back at the start.
Tensor roll(const Tensor& x, std::int64_t shift, int dim, Loc loc = Loc::current());
// x repeated along each dim; more entries than dims add dims in front.
Tensor repeat(const Tensor& x, const Shape& times, Loc loc = Loc::current());
// At most `count` parts of equal size along `dim`; the last may be smaller.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, int dim = 0, Loc loc = Loc::current());

// The largest of each row along `dim`, the first of equals, and its place (i64); only `values` has a gradient.
struct ValuesAndIndices {
  Tensor values, indices;
};
ValuesAndIndices max_with_indices(const Tensor& x, int dim, bool keepdim = false, Loc loc = Loc::current());
// Each row along `dim` in order; equals keep theirs, NaN is the largest. topk: the `count` largest (or smallest), in
// order. The places are found on the host.
ValuesAndIndices sort(const Tensor& x, int dim = -1, bool descending = false, Loc loc = Loc::current());
ValuesAndIndices topk(const Tensor& x, std::int64_t count, int dim = -1, bool largest = true, Loc loc = Loc::current());
// Along `dim`. Half numbers are added and multiplied in f32 and rounded once. The order is that of a binary tree.
Tensor cumsum(const Tensor& x, int dim, Loc loc = Loc::current());
Tensor prod(const Tensor& x, int dim, bool keepdim = false, Loc loc = Loc::current());
Tensor prod(const Tensor& x, Loc loc = Loc::current());  // of all elements
Tensor cumprod(const Tensor& x, int dim, Loc loc = Loc::current());
// NaN, Inf and -Inf replaced; those that are not given become 0, the largest and the lowest number of x's dtype. Their
// gradient is 0.
Tensor nan_to_num(const Tensor& x, double nan = 0, std::optional<double> inf = {},
                  std::optional<double> negative_inf = {}, Loc loc = Loc::current());

// Einstein's summation of one or two tensors: einsum("bij,bjk->bik", {a, b}). Without "->" the result has the letters
// that occur once, sorted. Two operands are one matmul, so autocast and recipes see it as one. Error for a letter twice
// in one operand, and for sizes that differ.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands, Loc loc = Loc::current());

// x [N, C, L] -> [N, out, L']; weight [out, C/groups, kernel]. A conv2d of height 1.
struct Conv1dOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Conv1dOptions options = {},
              Loc loc = Loc::current());
// The gradient of conv2d as a layer: x [N, C, H, W] -> [N, out, H', W'] with H' = (H - 1) stride - 2 padding +
// dilation (kernel - 1) + 1 + output_padding; weight [C, out/groups, kh, kw]. Policies and recipes treat it as conv2d.
struct ConvTranspose2dOptions {
  // output_padding: less than stride or dilation
  Size2 stride = 1;
  Size2 padding = 0;
  Size2 output_padding = 0;
  Size2 dilation = 1;
  std::int64_t groups = 1;
};
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        ConvTranspose2dOptions options = {}, Loc loc = Loc::current());
// x [N, C, H, W] -> [N, C, height, width], the largest of each window; equals share the gradient.
Tensor adaptive_max_pool2d(const Tensor& x, std::int64_t height, std::int64_t width, Loc loc = Loc::current());
// x [N, C, H, W] -> [N, C, height, width]. Bilinear: pixels are squares; bilinear_corners: pixels are points, and those
// at the corners stay there (PyTorch's align_corners). Half images are computed in f32 and rounded once.
enum class Interpolation : std::uint8_t { nearest, bilinear, bilinear_corners };
Tensor interpolate(const Tensor& x, std::int64_t height, std::int64_t width, Interpolation by = Interpolation::nearest,
                   Loc loc = Loc::current());

// The losses `each` of the elements as they are, or their sum or mean.
Tensor reduced_loss(const Tensor& each, Reduction by, Loc loc = Loc::current());
// Losses. They compute in f32 (f64 for f64).
// Huber 1964: d^2/2 for |d| = |x - y| up to delta, then delta (|d| - delta/2).
Tensor huber_loss(const Tensor& x, const Tensor& y, Reduction by = Reduction::mean, double delta = 1,
                  Loc loc = Loc::current());
// -weight[classes[n]] * log_p[n, classes[n]] of log-probabilities [N, C] (or [N, C, d..]) and classes i64 [N] (or
// [N, d..]). The mean is the sum divided by the sum of the weights; NaN if there is none. On the CPU an Error names a
// class out of range.
struct NllOptions {
  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;  // elements of this class are 0, also in the mean's denominator
  Tensor weight = {};                // [C], one for each class; undefined: 1
};
Tensor nll_loss(const Tensor& log_p, const Tensor& classes, const NllOptions& options, Loc loc = Loc::current());
Tensor nll_loss(const Tensor& log_p, const Tensor& classes, Reduction by = Reduction::mean, Loc loc = Loc::current());
// Cross entropy with weights of classes, weight [C]: nll_loss of log_softmax. Label smoothing e spreads a share e of
// each target over all classes, weighted. The mean divides by the sum of the targets' weights.
Tensor weighted_cross_entropy(const Tensor& logits, const Tensor& classes, const Tensor& weight,
                              CrossEntropyOptions options = {}, Loc loc = Loc::current());
// Cross entropy with probabilities as targets, of the logits' sizes [N, C] or [N, C, d..]; the mean is over N and d...
// PyTorch's cross_entropy with floating targets. ignore_index does not apply.
Tensor soft_cross_entropy(const Tensor& logits, const Tensor& probabilities, CrossEntropyOptions options = {},
                          Loc loc = Loc::current());
// p (log p - log_q) of log-probabilities log_q and probabilities p; 0 where p is 0. The mean is over elements.
// PyTorch's "batchmean" is the sum divided by the batch's size.
Tensor kl_div(const Tensor& log_q, const Tensor& p, Reduction by = Reduction::mean, Loc loc = Loc::current());

// `count` draws i64 [.., count] from the weights [.., C] of each row (at least 0, not all 0), with or without
// replacement. Error where a row has too few weights above 0.
Tensor multinomial(const Tensor& weights, std::int64_t count, bool replacement = false,
                   Generator& g = default_generator());
Tensor full_like(const Tensor& t, double value);
Tensor randn_like(const Tensor& t, Generator& g = default_generator());
// 1 with probability p, element by element, else 0; in p's dtype.
Tensor bernoulli(const Tensor& p, Generator& g = default_generator());

}  // namespace gradual
