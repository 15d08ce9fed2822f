#include "ops.h"

#include <algorithm>

#include "dispatch.h"

namespace gradual {
namespace {

const Tensor kNone;

Tensor unary(OpId op, const Tensor& x, Loc loc, const Attrs& attrs = {}) { return dispatch1(op, {&x}, attrs, loc); }

Tensor binary(OpId op, const Operand& a, const Operand& b) {
  if (a.tensor->defined() && b.tensor->defined()) return dispatch1(op, {a.tensor, b.tensor}, Attrs{}, a.where);
  for (const Operand* operand : {&a, &b})
    if (!operand->is_number() && !operand->tensor->defined())
      fail(std::string(name(op)) + ": an operand is an undefined tensor");
  if (a.is_number() && b.is_number()) fail(std::string(name(op)) + ": needs a tensor, given two numbers");
  const bool left = a.is_number();
  return dispatch1(op, {a.tensor, b.tensor}, ScalarAttrs{left ? a.value : b.value}, left ? b.where : a.where);
}

// In-place ops take an undefined operand for a number: a user's must not get that far.
void need_operand(OpId op, const Tensor& t) {
  if (!t.defined()) fail(std::string(name(op)) + ": the operand is an undefined tensor");
}

std::uint32_t dim_mask(const Tensor& x, const Shape& dims, OpId op) {
  if (dims.empty()) return (1u << x.ndim()) - 1;
  std::uint32_t mask = 0;
  for (std::int64_t d : dims) {
    const std::uint32_t bit = 1u << wrap_dim(d, x.ndim(), name(op).data());
    if (mask & bit) fail(std::string(name(op)) + ": dim " + std::to_string(d) + " is listed twice");
    mask |= bit;
  }
  return x.ndim() == 0 ? 0 : mask;
}

Tensor reduce(OpId op, const Tensor& x, const Shape& dims, bool keepdim, Loc loc, double value = 0) {
  return unary(op, x, loc, ReduceAttrs{dim_mask(x, dims, op), keepdim, value});
}

Tensor along(OpId op, const Tensor& x, int dim, bool keepdim, Loc loc) {
  return unary(op, x, loc, DimAttrs{wrap_dim(dim, x.ndim(), name(op).data()), keepdim});
}

PoolAttrs pool_attrs(const Pool2dOptions& o) {
  const std::int64_t stride = o.stride ? o.stride : o.kernel;
  return {{o.kernel, o.kernel}, {stride, stride}, {o.padding, o.padding}, {0, 0}};
}

Tensor loss(OpId op, const Tensor& x, const Tensor& y, Reduction reduction, Loc loc) {
  return dispatch1(op, {&x, &y}, ReductionAttrs{static_cast<int>(reduction)}, loc);
}

}  // namespace

const Tensor& Operand::none() { return kNone; }

Tensor neg(const Tensor& x, Loc loc) { return unary(OpId::neg, x, loc); }
Tensor abs(const Tensor& x, Loc loc) { return unary(OpId::abs, x, loc); }
Tensor sign(const Tensor& x, Loc loc) { return unary(OpId::sign, x, loc); }
Tensor exp(const Tensor& x, Loc loc) { return unary(OpId::exp, x, loc); }
Tensor log(const Tensor& x, Loc loc) { return unary(OpId::log, x, loc); }
Tensor log1p(const Tensor& x, Loc loc) { return unary(OpId::log1p, x, loc); }
Tensor sqrt(const Tensor& x, Loc loc) { return unary(OpId::sqrt, x, loc); }
Tensor rsqrt(const Tensor& x, Loc loc) { return unary(OpId::rsqrt, x, loc); }
Tensor reciprocal(const Tensor& x, Loc loc) { return unary(OpId::reciprocal, x, loc); }
Tensor square(const Tensor& x, Loc loc) { return unary(OpId::square, x, loc); }
Tensor sin(const Tensor& x, Loc loc) { return unary(OpId::sin, x, loc); }
Tensor cos(const Tensor& x, Loc loc) { return unary(OpId::cos, x, loc); }
Tensor tanh(const Tensor& x, Loc loc) { return unary(OpId::tanh, x, loc); }
Tensor sigmoid(const Tensor& x, Loc loc) { return unary(OpId::sigmoid, x, loc); }
Tensor erf(const Tensor& x, Loc loc) { return unary(OpId::erf, x, loc); }
Tensor relu(const Tensor& x, Loc loc) { return unary(OpId::relu, x, loc); }
Tensor leaky_relu(const Tensor& x, double slope, Loc loc) {
  return unary(OpId::leaky_relu, x, loc, ScalarAttrs{slope});
}
Tensor gelu(const Tensor& x, Gelu form, Loc loc) { return unary(OpId::gelu, x, loc, GeluAttrs{form == Gelu::tanh}); }
Tensor silu(const Tensor& x, Loc loc) { return unary(OpId::silu, x, loc); }
Tensor softplus(const Tensor& x, Loc loc) { return unary(OpId::softplus, x, loc); }
Tensor clamp(const Tensor& x, double low, double high, Loc loc) {
  return unary(OpId::clamp, x, loc, ScalarAttrs{low, high});
}
Tensor cast(const Tensor& x, DType dtype, Loc loc) {
  if (x.dtype() == dtype) return x;
  return unary(OpId::cast, x, loc, CastAttrs{dtype});
}
Tensor to_device(const Tensor& x, Device device, Loc loc) {
  if (x.device() == device) return x;
  return unary(OpId::to_device, x, loc, DeviceAttrs{device});
}
Tensor clone(const Tensor& x, Loc loc) { return unary(OpId::clone, x, loc); }
Tensor logical_not(const Tensor& x, Loc loc) { return unary(OpId::logical_not, x, loc); }

Tensor add(const Operand& a, const Operand& b) { return binary(OpId::add, a, b); }
Tensor sub(const Operand& a, const Operand& b) { return binary(OpId::sub, a, b); }
Tensor mul(const Operand& a, const Operand& b) { return binary(OpId::mul, a, b); }
Tensor div(const Operand& a, const Operand& b) { return binary(OpId::div, a, b); }
Tensor pow(const Operand& a, const Operand& b) { return binary(OpId::pow, a, b); }
Tensor maximum(const Operand& a, const Operand& b) { return binary(OpId::maximum, a, b); }
Tensor minimum(const Operand& a, const Operand& b) { return binary(OpId::minimum, a, b); }
Tensor eq(const Operand& a, const Operand& b) { return binary(OpId::eq, a, b); }
Tensor ne(const Operand& a, const Operand& b) { return binary(OpId::ne, a, b); }
Tensor lt(const Operand& a, const Operand& b) { return binary(OpId::lt, a, b); }
Tensor le(const Operand& a, const Operand& b) { return binary(OpId::le, a, b); }
Tensor gt(const Operand& a, const Operand& b) { return binary(OpId::gt, a, b); }
Tensor ge(const Operand& a, const Operand& b) { return binary(OpId::ge, a, b); }
Tensor logical_and(const Operand& a, const Operand& b) { return binary(OpId::logical_and, a, b); }
Tensor logical_or(const Operand& a, const Operand& b) { return binary(OpId::logical_or, a, b); }
Tensor logical_xor(const Operand& a, const Operand& b) { return binary(OpId::logical_xor, a, b); }
Tensor operator-(const Operand& a) { return neg(*a.tensor, a.where); }

const Tensor& Tensor::add_(const Tensor& other, double alpha, SourceLocation loc) const {
  need_operand(OpId::add_, other);
  dispatch1(OpId::add_, {this, &other}, ScalarAttrs{alpha}, loc);
  return *this;
}
const Tensor& Tensor::add_(double value, SourceLocation loc) const {
  dispatch1(OpId::add_, {this, &kNone}, ScalarAttrs{value}, loc);
  return *this;
}
const Tensor& Tensor::mul_(const Tensor& other, SourceLocation loc) const {
  need_operand(OpId::mul_, other);
  dispatch1(OpId::mul_, {this, &other}, {}, loc);
  return *this;
}
const Tensor& Tensor::mul_(double value, SourceLocation loc) const {
  dispatch1(OpId::mul_, {this, &kNone}, ScalarAttrs{value}, loc);
  return *this;
}
const Tensor& Tensor::copy_(const Tensor& source, SourceLocation loc) const {
  need_operand(OpId::copy_, source);
  dispatch1(OpId::copy_, {this, &source}, {}, loc);
  return *this;
}
const Tensor& Tensor::fill_(double value, SourceLocation loc) const {
  dispatch1(OpId::fill_, {this}, ScalarAttrs{value}, loc);
  return *this;
}

Tensor where(const Tensor& condition, const Operand& a, const Operand& b) {
  if (!condition.defined() || (!a.is_number() && !a.tensor->defined()) || (!b.is_number() && !b.tensor->defined()))
    fail("where: an operand is an undefined tensor");
  if (a.is_number() && b.is_number()) {
    // Two numbers: the first becomes an f32 0-d tensor, the second stays a scalar.
    const Tensor left = scalar(a.value, {.device = condition.device()});
    return dispatch1(OpId::where, {&condition, &left, &kNone}, ScalarAttrs{b.value}, a.where);
  }
  const bool left = !a.tensor->defined();
  return dispatch1(OpId::where, {&condition, a.tensor, b.tensor}, ScalarAttrs{left ? a.value : b.value}, a.where);
}

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, Loc loc) {
  return reduce(OpId::sum, x, dims, keepdim, loc);
}
Tensor mean(const Tensor& x, const Shape& dims, bool keepdim, Loc loc) {
  return reduce(OpId::mean, x, dims, keepdim, loc);
}
Tensor var(const Tensor& x, const Shape& dims, bool keepdim, double correction, Loc loc) {
  return reduce(OpId::var, x, dims, keepdim, loc, correction);
}
Tensor max(const Tensor& x, const Shape& dims, bool keepdim, Loc loc) {
  return reduce(OpId::max, x, dims, keepdim, loc);
}
Tensor min(const Tensor& x, const Shape& dims, bool keepdim, Loc loc) {
  return reduce(OpId::min, x, dims, keepdim, loc);
}
Tensor argmax(const Tensor& x, int dim, bool keepdim, Loc loc) { return along(OpId::argmax, x, dim, keepdim, loc); }
Tensor argmin(const Tensor& x, int dim, bool keepdim, Loc loc) { return along(OpId::argmin, x, dim, keepdim, loc); }
Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim, Loc loc) {
  return reduce(OpId::logsumexp, x, dims, keepdim, loc);
}
Tensor norm(const Tensor& x, double p, const Shape& dims, bool keepdim, Loc loc) {
  return reduce(OpId::norm, x, dims, keepdim, loc, p);
}

Tensor matmul(const Tensor& a, const Tensor& b, Loc loc) { return dispatch1(OpId::matmul, {&a, &b}, {}, loc); }
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Loc loc) {
  return dispatch1(OpId::linear, {&x, &weight, &bias}, {}, loc);
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Conv2dOptions o, Loc loc) {
  return conv2d(x, weight, bias,
                ConvAttrs{{o.stride, o.stride}, {o.padding, o.padding}, {o.dilation, o.dilation}, o.groups, {0, 0}},
                loc);
}
template <std::same_as<ConvAttrs> A>
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const A& attrs, Loc loc) {
  return dispatch1(OpId::conv2d, {&x, &weight, &bias}, attrs, loc);
}
template Tensor conv2d(const Tensor&, const Tensor&, const Tensor&, const ConvAttrs&, Loc);
Tensor conv2d_backward_input(const Tensor& dy, const Tensor& weight, const ConvAttrs& attrs, Loc loc) {
  return dispatch1(OpId::conv2d_backward_input, {&dy, &weight}, attrs, loc);
}
Tensor conv2d_backward_weight(const Tensor& dy, const Tensor& x, const ConvAttrs& attrs, Loc loc) {
  return dispatch1(OpId::conv2d_backward_weight, {&dy, &x}, attrs, loc);
}
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                    AttentionAttrs attrs, Loc loc) {
  return dispatch1(OpId::scaled_dot_product_attention, {&q, &k, &v, &mask}, attrs, loc);
}

Tensor max_pool2d(const Tensor& x, Pool2dOptions options, Loc loc) {
  return dispatch1(OpId::max_pool2d, {&x}, pool_attrs(options), loc);
}
std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, const PoolAttrs& attrs, Loc loc) {
  const Tensor* in[] = {&x};
  Outputs out = dispatch(OpId::max_pool2d, TensorRefs(in, 1), attrs, loc);
  return {out[0], out[1]};
}
Tensor max_pool2d_backward(const Tensor& dy, const Tensor& indices, const PoolAttrs& attrs, Loc loc) {
  return dispatch1(OpId::max_pool2d_backward, {&dy, &indices}, attrs, loc);
}
Tensor max_pool2d_gather(const Tensor& x, const Tensor& indices, Loc loc) {
  return dispatch1(OpId::max_pool2d_gather, {&x, &indices}, {}, loc);
}
Tensor avg_pool2d(const Tensor& x, Pool2dOptions options, Loc loc) { return avg_pool2d(x, pool_attrs(options), loc); }
template <std::same_as<PoolAttrs> A> Tensor avg_pool2d(const Tensor& x, const A& attrs, Loc loc) {
  return dispatch1(OpId::avg_pool2d, {&x}, attrs, loc);
}
template Tensor avg_pool2d(const Tensor&, const PoolAttrs&, Loc);
Tensor avg_pool2d_backward(const Tensor& dy, const PoolAttrs& attrs, Loc loc) {
  return dispatch1(OpId::avg_pool2d_backward, {&dy}, attrs, loc);
}
Tensor adaptive_avg_pool2d(const Tensor& x, std::int64_t height, std::int64_t width, Loc loc) {
  return dispatch1(OpId::adaptive_avg_pool2d, {&x}, PoolAttrs{.size = {height, width}}, loc);
}
Tensor adaptive_avg_pool2d_backward(const Tensor& dy, const PoolAttrs& attrs, Loc loc) {
  return dispatch1(OpId::adaptive_avg_pool2d_backward, {&dy}, attrs, loc);
}

BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                           const Tensor& var, bool training, double eps, Loc loc) {
  const Tensor* in[] = {&x, &weight, &bias, &mean, &var};
  Outputs out = dispatch(OpId::batch_norm, TensorRefs(in, 5), NormAttrs{.eps = eps, .training = training}, loc);
  return {out[0], out[1], out[2]};
}
Tensor layer_norm(const Tensor& x, int dims, const Tensor& weight, const Tensor& bias, double eps, Loc loc) {
  return dispatch1(OpId::layer_norm, {&x, &weight, &bias}, NormAttrs{.eps = eps, .dims = dims}, loc);
}
Tensor rms_norm(const Tensor& x, int dims, const Tensor& weight, double eps, Loc loc) {
  return dispatch1(OpId::rms_norm, {&x, &weight}, NormAttrs{.eps = eps, .dims = dims}, loc);
}
Outputs batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                            const Tensor& invstd, const NormAttrs& attrs, Loc loc) {
  const Tensor* in[] = {&dy, &x, &weight, &mean, &invstd};
  return dispatch(OpId::batch_norm_backward, TensorRefs(in, 5), attrs, loc);
}
Outputs layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                            const Tensor& invstd, const NormAttrs& attrs, Loc loc) {
  const Tensor* in[] = {&dy, &x, &weight, &mean, &invstd};
  return dispatch(OpId::layer_norm_backward, TensorRefs(in, 5), attrs, loc);
}
Outputs rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& invrms,
                          const NormAttrs& attrs, Loc loc) {
  const Tensor* in[] = {&dy, &x, &weight, &invrms};
  return dispatch(OpId::rms_norm_backward, TensorRefs(in, 4), attrs, loc);
}
Tensor softmax(const Tensor& x, int dim, Loc loc) { return along(OpId::softmax, x, dim, false, loc); }
Tensor softmax_backward(const Tensor& dy, const Tensor& y, int dim, Loc loc) {
  return dispatch1(OpId::softmax_backward, {&dy, &y}, DimAttrs{dim}, loc);
}
Tensor log_softmax(const Tensor& x, int dim, Loc loc) { return along(OpId::log_softmax, x, dim, false, loc); }
Tensor log_softmax_backward(const Tensor& dy, const Tensor& y, int dim, Loc loc) {
  return dispatch1(OpId::log_softmax_backward, {&dy, &y}, DimAttrs{dim}, loc);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& classes, CrossEntropyOptions o, Loc loc) {
  const CrossEntropyAttrs attrs{o.ignore_index, o.label_smoothing, static_cast<int>(o.reduction)};
  if (logits.ndim() <= 2) return dispatch1(OpId::cross_entropy, {&logits, &classes}, attrs, loc);
  // [N, C, d..]: classes last, then rows.
  Shape order;
  order.push_back(0);
  for (int i = 2; i < logits.ndim(); ++i) order.push_back(i);
  order.push_back(1);
  const Tensor rows = flatten(permute(logits, order, loc), 0, -2, loc);
  const Tensor flat = reshape(classes, {-1}, loc);
  const Tensor result = dispatch1(OpId::cross_entropy, {&rows, &flat}, attrs, loc);
  return o.reduction == Reduction::none ? reshape(result, classes.sizes(), loc) : result;
}
Tensor cross_entropy_backward(const Tensor& dy, const Tensor& log_probabilities, const Tensor& classes,
                              const CrossEntropyAttrs& attrs, Loc loc) {
  return dispatch1(OpId::cross_entropy_backward, {&dy, &log_probabilities, &classes}, attrs, loc);
}
Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction r, Loc loc) { return loss(OpId::mse_loss, x, y, r, loc); }
Tensor l1_loss(const Tensor& x, const Tensor& y, Reduction r, Loc loc) { return loss(OpId::l1_loss, x, y, r, loc); }
Tensor bce_loss(const Tensor& p, const Tensor& y, Reduction r, Loc loc) { return loss(OpId::bce_loss, p, y, r, loc); }
Tensor bce_with_logits_loss(const Tensor& x, const Tensor& y, Reduction r, Loc loc) {
  return loss(OpId::bce_with_logits_loss, x, y, r, loc);
}

Tensor dropout(const Tensor& x, double p, Generator& g, Loc loc) {
  if (!(p >= 0 && p <= 1)) fail("dropout: p is " + std::to_string(p) + "; allowed are 0 to 1");
  return unary(OpId::dropout, x, loc, DropoutAttrs{p, g.next()});
}
Tensor embedding(const Tensor& weight, const Tensor& indices, Loc loc) {
  return dispatch1(OpId::embedding, {&weight, &indices}, {}, loc);
}

Tensor view(const Tensor& x, const Shape& sizes, Loc loc) {
  return unary(OpId::view, x, loc, ShapeAttrs{infer_size(sizes, x.numel(), "view")});
}
Tensor reshape(const Tensor& x, const Shape& sizes, Loc loc) {
  const Shape resolved = infer_size(sizes, x.numel(), "reshape");
  if (resolved == x.sizes()) return x;
  Shape strides;
  if (view_strides(x.sizes(), x.strides(), resolved, strides)) return unary(OpId::view, x, loc, ShapeAttrs{resolved});
  return unary(OpId::view, clone(x, loc), loc, ShapeAttrs{resolved});
}
Tensor permute(const Tensor& x, const Shape& dims, Loc loc) {
  if (dims.size() != x.ndim())
    fail("permute: " + to_string(dims) + " does not list every dim of " + to_string(x.sizes()) + " once");
  Shape wrapped = dims;
  std::uint32_t seen = 0;
  for (std::int64_t& d : wrapped) {
    d = wrap_dim(d, x.ndim(), "permute");
    seen |= 1u << d;
  }
  if (seen != (1u << x.ndim()) - 1)
    fail("permute: " + to_string(dims) + " does not list every dim of " + to_string(x.sizes()) + " once");
  return unary(OpId::permute, x, loc, ShapeAttrs{wrapped});
}
Tensor transpose(const Tensor& x, int a, int b, Loc loc) {
  if (x.ndim() == 0) return x;
  Shape dims;
  for (int i = 0; i < x.ndim(); ++i) dims.push_back(i);
  std::swap(dims[wrap_dim(a, x.ndim(), "transpose")], dims[wrap_dim(b, x.ndim(), "transpose")]);
  return unary(OpId::permute, x, loc, ShapeAttrs{dims});
}
Tensor expand(const Tensor& x, const Shape& sizes, Loc loc) {
  Shape wanted = sizes;
  const int lead = sizes.size() - x.ndim();
  for (int i = 0; i < sizes.size(); ++i) {
    const bool own = i >= lead;
    if (wanted[i] == -1 && own) wanted[i] = x.sizes()[i - lead];
    if (lead < 0 || wanted[i] < 0 || (own && x.sizes()[i - lead] != 1 && x.sizes()[i - lead] != wanted[i]))
      fail("expand: " + to_string(x.sizes()) + " does not expand to " + to_string(sizes) +
           "; only dims of size 1 and new leading dims can grow");
  }
  if (lead < 0) fail("expand: " + to_string(x.sizes()) + " has more dims than " + to_string(sizes));
  if (wanted == x.sizes()) return x;
  return unary(OpId::expand, x, loc, ShapeAttrs{wanted});
}
Tensor squeeze(const Tensor& x, int dim, Loc loc) {
  const int d = wrap_dim(dim, x.ndim(), "squeeze");
  if (x.ndim() == 0 || x.sizes()[d] != 1) return x;
  Shape sizes = x.sizes();
  sizes.erase(d);
  return unary(OpId::view, x, loc, ShapeAttrs{sizes});
}
Tensor unsqueeze(const Tensor& x, int dim, Loc loc) {
  Shape sizes = x.sizes();
  sizes.insert(wrap_dim(dim, x.ndim() + 1, "unsqueeze"), 1);
  return unary(OpId::view, x, loc, ShapeAttrs{sizes});
}
Tensor flatten(const Tensor& x, int start, int end, Loc loc) {
  if (x.ndim() == 0) return reshape(x, {1}, loc);
  const int a = wrap_dim(start, x.ndim(), "flatten");
  const int b = wrap_dim(end, x.ndim(), "flatten");
  if (a > b) fail("flatten: start " + std::to_string(start) + " lies behind end " + std::to_string(end));
  Shape sizes;
  std::int64_t run = 1;
  for (int i = 0; i < x.ndim(); ++i) {
    run *= x.sizes()[i];
    if (i >= a && i < b) continue;
    sizes.push_back(run);
    run = 1;
  }
  return reshape(x, sizes, loc);
}
Tensor slice(const Tensor& x, int dim, Slice r, Loc loc) {
  if (x.ndim() == 0) fail("slice: a 0-d tensor has no dim to slice");
  const int d = wrap_dim(dim, x.ndim(), "slice");
  if (r.step < 1) fail("slice: step " + std::to_string(r.step) + " is not allowed; it must be at least 1");
  const std::int64_t n = x.sizes()[d];
  const auto clamp_index = [n](std::int64_t i) {
    if (i < 0) i += n;
    return i < 0 ? 0 : i > n ? n : i;
  };
  const std::int64_t start = clamp_index(r.start.value_or(0));
  std::int64_t stop = clamp_index(r.stop.value_or(n));
  if (stop < start) stop = start;
  r.step = std::min(r.step, std::max<std::int64_t>(1, stop - start));  // no larger one reaches further
  if (start == 0 && stop == n && r.step == 1) return x;
  return unary(OpId::slice, x, loc, SliceAttrs{d, start, stop, r.step, n});
}
Tensor narrow(const Tensor& x, int dim, std::int64_t start, std::int64_t length, Loc loc) {
  const int d = wrap_dim(dim, x.ndim(), "narrow");
  const std::int64_t n = x.ndim() ? x.sizes()[d] : 0;
  if (start < 0 || length < 0 || start + length > n)
    fail("narrow: start " + std::to_string(start) + " and length " + std::to_string(length) + " leave dim " +
         std::to_string(d) + " of " + to_string(x.sizes()));
  return slice(x, d, {start, start + length}, loc);
}
Tensor select(const Tensor& x, int dim, std::int64_t index, Loc loc) {
  if (x.ndim() == 0) fail("select: a 0-d tensor has no dim to select from; use item()");
  const int d = wrap_dim(dim, x.ndim(), "select");
  const std::int64_t n = x.sizes()[d];
  const std::int64_t i = index < 0 ? index + n : index;
  if (i < 0 || i >= n)
    fail("select: index " + std::to_string(index) + " is out of range for dim " + std::to_string(d) + " of " +
         to_string(x.sizes()));
  return squeeze(slice(x, d, {i, i + 1}, loc), d, loc);
}
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim, Loc loc) {
  if (size < 1) fail("split: size " + std::to_string(size) + " is not allowed; it must be at least 1");
  std::vector<Tensor> parts;
  const std::int64_t n = x.size(dim);
  for (std::int64_t i = 0; i < n; i += size) parts.push_back(slice(x, dim, {i, i + size < n ? i + size : n}, loc));
  return parts;
}

Tensor contiguous(const Tensor& x, Loc loc) { return x.is_contiguous() ? x : clone(x, loc); }
Tensor slice_backward(const Tensor& dy, const SliceAttrs& attrs, Loc loc) {
  return unary(OpId::slice_backward, dy, loc, attrs);
}
Tensor cat(const std::vector<Tensor>& tensors, int dim, Loc loc) {
  if (tensors.empty()) fail("cat: needs at least one tensor");
  std::vector<const Tensor*> refs;
  refs.reserve(tensors.size());
  for (const Tensor& t : tensors) refs.push_back(&t);
  const DimAttrs attrs{wrap_dim(dim, tensors[0].ndim(), "cat")};
  return std::move(dispatch(OpId::cat, TensorRefs(refs.data(), static_cast<int>(refs.size())), attrs, loc)[0]);
}
Tensor stack(const std::vector<Tensor>& tensors, int dim, Loc loc) {
  std::vector<Tensor> rows;
  rows.reserve(tensors.size());
  for (const Tensor& t : tensors) {
    if (t.sizes() != tensors[0].sizes())
      fail("stack: all shapes must be equal, given " + to_string(tensors[0].sizes()) + " and " + to_string(t.sizes()));
    rows.push_back(unsqueeze(t, dim, loc));
  }
  if (rows.empty()) fail("stack: needs at least one tensor");
  return cat(rows, wrap_dim(dim, rows[0].ndim(), "stack"), loc);
}
Tensor gather(const Tensor& x, int dim, const Tensor& index, Loc loc) {
  return dispatch1(OpId::gather, {&x, &index}, IndexAttrs{wrap_dim(dim, x.ndim(), "gather")}, loc);
}
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src, Loc loc) {
  return dispatch1(OpId::scatter_add, {&x, &index, &src}, IndexAttrs{wrap_dim(dim, x.ndim(), "scatter_add")}, loc);
}
Tensor index_select(const Tensor& x, int dim, const Tensor& index, Loc loc) {
  return dispatch1(OpId::index_select, {&x, &index}, IndexAttrs{wrap_dim(dim, x.ndim(), "index_select")}, loc);
}
Tensor index_add(const Tensor& src, int dim, const Tensor& index, std::int64_t size, Loc loc) {
  return dispatch1(OpId::index_add, {&src, &index}, IndexAttrs{wrap_dim(dim, src.ndim(), "index_add"), size}, loc);
}
Tensor pad(const Tensor& x, const Shape& before, const Shape& after, double value, Loc loc) {
  if (before.size() != x.ndim() || after.size() != x.ndim())
    fail("pad: before " + to_string(before) + " and after " + to_string(after) + " need one entry for each dim of " +
         to_string(x.sizes()));
  return unary(OpId::pad, x, loc, PadAttrs{before, after, value});
}
Tensor tril(const Tensor& x, std::int64_t diagonal, Loc loc) { return unary(OpId::tril, x, loc, TrilAttrs{diagonal}); }
Tensor one_hot(const Tensor& classes, std::int64_t count, Loc loc) {
  return unary(OpId::one_hot, classes, loc, OneHotAttrs{count});
}

Tensor sum_to(const Tensor& x, const Shape& sizes, Loc loc) {
  if (x.sizes() == sizes) return x;
  const int lead = x.ndim() - sizes.size();
  Shape dims;
  for (int i = 0; i < x.ndim(); ++i)
    if (i < lead || (sizes[i - lead] == 1 && x.sizes()[i] != 1)) dims.push_back(i);
  return reshape(dims.empty() ? x : sum(x, dims, true, loc), sizes, loc);
}

}  // namespace gradual
