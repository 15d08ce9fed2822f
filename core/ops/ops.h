// Every op as a free function. (Gradient ops of pools, norms and losses have no function; backward rules dispatch them
// by OpId.) Shapes are written as [..]. Errors name the op, shapes and dtypes. The last argument records the caller's
// source line; pass it only to forward your own caller's.
#pragma once

#include <utility>
#include <vector>

#include "../tensor/tensor.h"
#include "op.h"

namespace gradual {

// An operand of an operator: a tensor or a number, with the operator's source line.
class Operand {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor)
  Operand(const Tensor& t, Loc loc = Loc::current()) : tensor(&t), where(loc) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Operand(Tensor&& t, Loc loc = Loc::current()) : tensor(&t), temporary(true), where(loc) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  Operand(T v, Loc loc = Loc::current())  // NOLINT(google-explicit-constructor)
      : tensor(&none()), value(static_cast<double>(v)), where(loc) {}

  bool is_number() const { return tensor == &none(); }

  const Tensor* tensor;
  double value = 0;
  bool temporary = false;  // an elementwise result may reuse its memory; the handle is undefined then
  Loc where;

 private:
  static const Tensor& none();
};

// Elementwise, any shape: neg abs sign floor ceil round (ties to even) trunc exp exp2 expm1 log log2 log1p log10 sqrt
// rsqrt reciprocal square sin cos asin acos atan asinh acosh atanh tanh sigmoid erf erfc relu silu softplus logical_not
// clone. Floats compute in f32 (f64 in f64) and round once; integers give f32 if the result must be a float.
#define GRADUAL_UNARY_OP(name, ...) Tensor name(const Tensor& x, Loc loc = Loc::current());
// The same with an option: leaky_relu(x, slope), gelu(x, form), softmax(x, dim), log_softmax(x, dim), tril(x, diagonal)
// and one_hot(classes, count), i64 [..] -> i64 [.., count].
#define GRADUAL_UNARY_OPTION_OP(name, kind, rule, infer, type, option, ...) \
  Tensor name(const Tensor& x, type option __VA_OPT__(= __VA_ARGS__), Loc loc = Loc::current());
// Elementwise, two operands that broadcast; either may be a number, which never promotes the tensor: add sub mul div
// pow maximum minimum, eq ne lt le gt ge (bool), logical_and logical_or logical_xor (bool). div of integers gives f32.
// atan2(y, x): the angle of the point (x, y). floor_divide and trunc_divide: the quotient rounded down or toward zero;
// remainder and fmod: what these leave of a, exact up to one rounding; Error where an integer is divided by 0 (on a GPU
// the quotient is 0 and a is left, because the host does not wait). bitwise_and bitwise_or bitwise_xor: of integers and
// bool. shift_left and shift_right (rounded down): of integers.
#define GRADUAL_BINARY_OP(name, ...) Tensor name(const Operand& a, const Operand& b);
// Reductions over `dims` (none: all): sum mean max min logsumexp. They accumulate in f32 (f64 for f64, i64 for
// integers) in fixed blocks; sum and mean obey an AccumulatorScope. mean of integers and bool gives f32.
#define GRADUAL_REDUCTION_OP(name, ...) \
  Tensor name(const Tensor& x, const Shape& dims = {}, bool keepdim = false, Loc loc = Loc::current());
// mse_loss, l1_loss, bce_loss and bce_with_logits_loss. Binary cross entropy: x are probabilities (bce_loss) or logits.
// Error for a probability outside of [0, 1], on a GPU NaN instead, because the host does not wait.
#define GRADUAL_LOSS_OP(name) \
  Tensor name(const Tensor& x, const Tensor& y, Reduction by = Reduction::mean, Loc loc = Loc::current());
#include "../ops.def"
Tensor amax(const Tensor& x, const Shape& dims = {}, bool keepdim = false, Loc loc = Loc::current());  // max

// Elementwise with options.
Tensor clamp(const Tensor& x, double low, double high, Loc loc = Loc::current());  // high if low is above it
// Nearest-even, IEEE overflow; x itself if it has the dtype (the device).
Tensor cast(const Tensor& x, DType dtype, Loc loc = Loc::current());
Tensor to_device(const Tensor& x, Device device, Loc loc = Loc::current());
Tensor where(const Tensor& condition, const Operand& a, const Operand& b);  // condition: bool

inline Tensor operator+(const Operand& a, const Operand& b) { return add(a, b); }
inline Tensor operator-(const Operand& a, const Operand& b) { return sub(a, b); }
inline Tensor operator*(const Operand& a, const Operand& b) { return mul(a, b); }
inline Tensor operator/(const Operand& a, const Operand& b) { return div(a, b); }
Tensor operator-(const Operand& a);
inline Tensor operator==(const Operand& a, const Operand& b) { return eq(a, b); }
inline Tensor operator!=(const Operand& a, const Operand& b) { return ne(a, b); }
inline Tensor operator<(const Operand& a, const Operand& b) { return lt(a, b); }
inline Tensor operator<=(const Operand& a, const Operand& b) { return le(a, b); }
inline Tensor operator>(const Operand& a, const Operand& b) { return gt(a, b); }
inline Tensor operator>=(const Operand& a, const Operand& b) { return ge(a, b); }
// Logical ops on masks (bool). Of integers: bitwise_and and its kin.
Tensor operator&(const Operand& a, const Operand& b);
Tensor operator|(const Operand& a, const Operand& b);
Tensor operator^(const Operand& a, const Operand& b);
Tensor operator~(const Operand& a);
inline Tensor operator!(const Tensor& a) { return ~a; }

// More reductions. argmax and argmin give i64, the first of equals; without a dim, its place in row-major order. A mean
// of nothing is NaN. var divides by max(0, n - correction): with a correction of n or more it is Inf, or NaN for equal
// numbers. norm: (sum |x|^p)^(1/p); p = 0 counts what is not 0, Inf and -Inf give the largest and smallest magnitude.
Tensor var(const Tensor& x, const Shape& dims = {}, bool keepdim = false, double correction = 1, Loc = Loc::current());
Tensor norm(const Tensor& x, double p = 2, const Shape& dims = {}, bool keepdim = false, Loc loc = Loc::current());
Tensor argmax(const Tensor& x, OptionalDim dim = {}, bool keepdim = false, Loc loc = Loc::current());
Tensor argmin(const Tensor& x, OptionalDim dim = {}, bool keepdim = false, Loc loc = Loc::current());

// Contractions: exact products, f32 accumulation (f64 for f64; an AccumulatorScope changes it), one rounding at the
// end.
// matmul: [.., m, k] x [.., k, n], batch dims broadcast.
Tensor matmul(const Tensor& a, const Tensor& b, Loc loc = Loc::current());
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Loc loc = Loc::current());
// relu(linear(..)), the same bits, as one op.
Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Loc loc = Loc::current());
// gelu(linear(..)) as one op, with the same bits on the CPU. On a GPU, if cuBLASLt supports it, the tanh form of f16
// and bf16 is applied to the sum before rounding.
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Gelu form = Gelu::exact,
                   Loc loc = Loc::current());
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Conv2dOptions options = {},
              Loc loc = Loc::current());
Tensor conv2d_backward_input(const Tensor& dy, const Tensor& weight, const ConvAttrs& attrs, Loc loc = Loc::current());
Tensor conv2d_backward_weight(const Tensor& dy, const Tensor& x, const ConvAttrs& attrs, Loc loc = Loc::current());
// q, k, v [.., L, E]; mask broadcasts to [.., L, S]: bool (true: may attend) or floating (added). A query that may
// attend to no key (false or -Inf for all) gives 0. For half operands scores and probabilities are f32, and y is
// rounded once.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask = {},
                                    AttentionOptions = {}, Generator& = default_generator(), Loc = Loc::current());

// Pooling over [N, C, H, W]. In avg_pool2d padding counts as zeros.
Tensor max_pool2d(const Tensor& x, Pool2dOptions options = {}, Loc loc = Loc::current());
std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, Pool2dOptions options, Loc loc = Loc::current());
Tensor avg_pool2d(const Tensor& x, Pool2dOptions options = {}, Loc loc = Loc::current());
Tensor adaptive_avg_pool2d(const Tensor& x, std::int64_t height, std::int64_t width, Loc loc = Loc::current());

// Normalisation.
// batch_norm is pure: x [N, C, ..]; weight, bias, mean, var [C] (weight, bias may be undefined; mean, var are used if
// not training). Returns y, and the mean and 1/sqrt(var + eps) that it used (f32; f64 for f64). With `relu`, returns
// relu(y), with the same bits as the two ops.
struct BatchNormResult {
  Tensor y, mean, invstd;
};
BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                           const Tensor& var, bool training, double eps = 1e-5, bool relu = false,
                           Loc loc = Loc::current());
// Updates running statistics [C] in place from those that batch_norm returned, and increments `batches` (i64, 0-d):
// running = (1 - momentum) running + momentum batch, with the unbiased variance; (1 - momentum) running, batch and the
// sum are rounded to the buffers' dtype. No gradient.
void batch_norm_update_(const Tensor& running_mean, const Tensor& running_var, const Tensor& batches,
                        const Tensor& mean, const Tensor& invstd, const RunningAttrs& attrs, Loc loc = Loc::current());
// layer_norm and rms_norm: over the last `dims` dims.
Tensor layer_norm(const Tensor& x, int dims, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5,
                  Loc loc = Loc::current());
Tensor rms_norm(const Tensor& x, int dims, const Tensor& weight = {}, double eps = 1e-6, Loc loc = Loc::current());

// Losses. cross_entropy: logits [N, C] (or [N, C, d..]) and classes i64 [N] (or [N, d..]).
Tensor cross_entropy(const Tensor& logits, const Tensor& classes, CrossEntropyOptions options = {},
                     Loc loc = Loc::current());

// Random and lookup. dropout draws one stream of the generator; its backward redraws the same numbers.
Tensor dropout(const Tensor& x, double p, Generator& g = default_generator(), Loc loc = Loc::current());
// residual + dropout(x) as one op, with the bits of the two ops; the sizes must be equal.
Tensor dropout_add(const Operand& x, const Tensor& residual, double p, Generator& g = default_generator());
// [V, E], i64 [..] -> [.., E]
Tensor embedding(const Tensor& weight, const Tensor& indices, Loc loc = Loc::current());

// Views: no data is copied.
Tensor view(const Tensor& x, const Shape& sizes, Loc loc = Loc::current());     // Error if a copy would be needed
Tensor reshape(const Tensor& x, const Shape& sizes, Loc loc = Loc::current());  // copies only if it must
Tensor permute(const Tensor& x, const Shape& dims, Loc loc = Loc::current());
Tensor transpose(const Tensor& x, int a, int b, Loc loc = Loc::current());
Tensor expand(const Tensor& x, const Shape& sizes, Loc loc = Loc::current());  // -1 keeps a size
Tensor squeeze(const Tensor& x, int dim, Loc loc = Loc::current());            // drops a dim of size 1, else no change
Tensor unsqueeze(const Tensor& x, int dim, Loc loc = Loc::current());
Tensor flatten(const Tensor& x, int start = 0, int end = -1, Loc loc = Loc::current());
Tensor slice(const Tensor& x, int dim, Slice range, Loc loc = Loc::current());
Tensor narrow(const Tensor& x, int dim, std::int64_t start, std::int64_t length, Loc loc = Loc::current());
Tensor select(const Tensor& x, int dim, std::int64_t index, Loc loc = Loc::current());
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim = 0, Loc loc = Loc::current());

// Movement.
Tensor contiguous(const Tensor& x, Loc loc = Loc::current());  // x itself if it is contiguous
// x [N, C, H, W] with contiguous channels in memory (NHWC); x itself if it already is. Values and sizes do not change.
// Convolutions, batch norm, pools (with adaptive ones and gradients) and elementwise ops keep this order, which saves
// libraries a reorder.
Tensor channels_last(const Tensor& x, Loc loc = Loc::current());
Tensor cat(const std::vector<Tensor>& tensors, int dim = 0, Loc loc = Loc::current());
Tensor stack(const std::vector<Tensor>& tensors, int dim = 0, Loc loc = Loc::current());
Tensor gather(const Tensor& x, int dim, const Tensor& index, Loc loc = Loc::current());
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src, Loc loc = Loc::current());
Tensor index_select(const Tensor& x, int dim, const Tensor& index, Loc loc = Loc::current());
Tensor index_add(const Tensor& src, int dim, const Tensor& index, std::int64_t size, Loc loc = Loc::current());
Tensor pad(const Tensor& x, const Shape& before, const Shape& after, double value = 0, Loc loc = Loc::current());

// Sums `x` to `sizes`, which undoes a broadcast. Error for sizes that do not broadcast to those of x.
Tensor sum_to(const Tensor& x, const Shape& sizes, Loc loc = Loc::current());

}  // namespace gradual
