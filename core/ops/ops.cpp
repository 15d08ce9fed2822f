#include "ops.h"

#include <algorithm>

#include "../support/throwf.h"
#include "dispatch.h"

namespace gradual {
namespace {

const Tensor kNone;

constexpr auto& run = dispatch1;

Tensor unary(OpId op, const Tensor& x, Loc loc, const Attrs& attrs = {}) { return run(op, {&x}, attrs, loc); }

Tensor binary(OpId op, const Operand& a, const Operand& b) {
  const Tensor* const both[] = {a.tensor, b.tensor};
  const TensorRefs inputs(both, 2, (a.temporary ? 1u : 0u) | (b.temporary ? 2u : 0u));
  if (a.tensor->defined() && b.tensor->defined()) return run(op, inputs, Attrs{}, a.where);
  for (const Operand* o : {&a, &b})
    if (!o->is_number() && !o->tensor->defined()) throwf("{}: an operand is an undefined tensor", to_string(op));
  if (a.is_number() && b.is_number()) throwf("{}: needs a tensor, given two numbers", to_string(op));
  const bool left = a.is_number();
  return run(op, inputs, ScalarAttrs{left ? a.value : b.value}, left ? b.where : a.where);
}

std::uint32_t dim_mask(const Tensor& x, const Shape& dims, OpId op) {
  if (dims.empty()) return (1u << x.dim()) - 1;
  std::uint32_t mask = 0;
  for (std::int64_t d : dims) {
    const std::uint32_t bit = 1u << wrap_dim(d, x.dim(), to_string(op).data());
    if (mask & bit) throwf("{}: dim {} is listed twice", to_string(op), d);
    mask |= bit;
  }
  return x.dim() == 0 ? 0 : mask;
}

// value: var's correction, norm's p.
Tensor reduce(OpId op, const Tensor& x, const Shape& dims, bool keepdim, Loc loc, double value = 0) {
  if (std::isnan(value)) throwf("{}: {} must not be NaN", to_string(op), op == OpId::var ? "the correction" : "p");
  return unary(op, x, loc, ReduceAttrs{dim_mask(x, dims, op), keepdim, value});
}

Tensor along(OpId op, const Tensor& x, int dim, bool keepdim, Loc loc) {
  return unary(op, x, loc, DimAttrs{wrap_dim(dim, x.dim(), to_string(op).data()), keepdim});
}

template <class T> Tensor with_option(OpId op, const Tensor& x, const T& option, Loc loc) {
  if constexpr (std::is_same_v<T, int>) return along(op, x, option, false, loc);
  else if constexpr (std::is_same_v<T, double>) return unary(op, x, loc, ScalarAttrs{option});
  else return unary(op, x, loc, option);
}

Tensor extreme_at(OpId op, const Tensor& x, OptionalDim dim, bool keepdim, Loc loc) {
  if (dim) return along(op, x, *dim, keepdim, loc);
  const Tensor place = along(op, flatten(x, 0, -1, loc), 0, false, loc);
  return keepdim ? reshape(place, Shape::filled(x.dim(), 1), loc) : place;
}

Tensor indexed(OpId op, TensorRefs inputs, int dim, Loc loc, std::int64_t size = 0) {
  return run(op, inputs, IndexAttrs{wrap_dim(dim, inputs[0].dim(), to_string(op).data()), size}, loc);
}

PoolAttrs attrs_of(const Pool2dOptions& o, const Tensor& x, Size2 size = 0) {
  PoolAttrs a{o, size};
  a.channels_last = x.defined() && is_channels_last(x.sizes(), x.strides());
  for (int i = 0; i < 2; ++i) a.stride[i] = a.stride[i] ? a.stride[i] : a.kernel[i];
  return a;
}

const Operand& mask(const Operand& a) {
  if (!a.is_number() && a.tensor->defined() && a.tensor->dtype() != DType::bool_)
    throwf("& | ^ ! ~ take masks (bool), given {}; compare it with a number first", describe(*a.tensor));
  return a;
}

}  // namespace

const Tensor& Operand::none() { return kNone; }

#define GRADUAL_UNARY_OP(name, ...) \
  Tensor name(const Tensor& x, Loc loc) { return unary(OpId::name, x, loc); }
#define GRADUAL_UNARY_OPTION_OP(name, kind, rule, infer, type, option, ...) \
  Tensor name(const Tensor& x, type option, Loc loc) { return with_option(OpId::name, x, option, loc); }
#define GRADUAL_BINARY_OP(name, ...) \
  Tensor name(const Operand& a, const Operand& b) { return binary(OpId::name, a, b); }
#define GRADUAL_REDUCTION_OP(name, ...) \
  Tensor name(const Tensor& x, const Shape& d, bool keepdim, Loc loc) { return reduce(OpId::name, x, d, keepdim, loc); }
#define GRADUAL_LOSS_OP(name) \
  Tensor name(const Tensor& x, const Tensor& y, Reduction by, Loc loc) { return run(OpId::name, {&x, &y}, by, loc); }
#include "../ops.def"
Tensor amax(const Tensor& x, const Shape& d, bool keepdim, Loc loc) { return max(x, d, keepdim, loc); }

Tensor clamp(const Tensor& x, double low, double high, Loc loc) {
  if (std::isnan(low) || std::isnan(high)) throwf("clamp: from {} to {}: a bound must not be NaN", low, high);
  return unary(OpId::clamp, x, loc, ScalarAttrs{low, high});
}
Tensor cast(const Tensor& x, DType dtype, Loc loc) { return x.dtype() == dtype ? x : unary(OpId::cast, x, loc, dtype); }
Tensor to_device(const Tensor& x, Device device, Loc loc) {
  return x.device() == device ? x : unary(OpId::to_device, x, loc, device);
}
Tensor operator-(const Operand& a) { return neg(*a.tensor, a.where); }
Tensor operator&(const Operand& a, const Operand& b) { return logical_and(mask(a), mask(b)); }
Tensor operator|(const Operand& a, const Operand& b) { return logical_or(mask(a), mask(b)); }
Tensor operator^(const Operand& a, const Operand& b) { return logical_xor(mask(a), mask(b)); }
Tensor operator~(const Operand& a) { return logical_not(*mask(a).tensor, a.where); }

Tensor where(const Tensor& condition, const Operand& a, const Operand& b) {
  if (!condition.defined() || (!a.is_number() && !a.tensor->defined()) || (!b.is_number() && !b.tensor->defined()))
    throw_error("where: an operand is an undefined tensor");
  const bool left = a.is_number() && !b.is_number();
  // Two numbers: the first becomes an f32 0-d tensor, the second stays a scalar.
  const Tensor first = a.is_number() && b.is_number() ? scalar(a.value, {.device = condition.device()}) : Tensor();
  const Tensor* const inputs[] = {&condition, first.defined() ? &first : a.tensor, b.tensor};
  return run(OpId::where, TensorRefs(inputs, 3, (a.temporary ? 2u : 0u) | (b.temporary ? 4u : 0u)),
             ScalarAttrs{left ? a.value : b.value}, a.where);
}

Tensor var(const Tensor& x, const Shape& d, bool k, double c, Loc l) { return reduce(OpId::var, x, d, k, l, c); }
Tensor argmax(const Tensor& x, OptionalDim d, bool k, Loc loc) { return extreme_at(OpId::argmax, x, d, k, loc); }
Tensor argmin(const Tensor& x, OptionalDim d, bool k, Loc loc) { return extreme_at(OpId::argmin, x, d, k, loc); }
Tensor norm(const Tensor& x, double p, const Shape& d, bool k, Loc l) { return reduce(OpId::norm, x, d, k, l, p); }

Tensor matmul(const Tensor& a, const Tensor& b, Loc loc) { return run(OpId::matmul, {&a, &b}, {}, loc); }
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b, Loc l) {
  return run(OpId::linear, {&x, &w, &b}, {}, l);
}
Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, Loc loc) {
  return run(OpId::linear_relu, {&x, &weight, &bias}, {}, loc);
}
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, Gelu form, Loc loc) {
  return run(OpId::linear_gelu, {&x, &weight, &bias}, form, loc);
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Conv2dOptions o, Loc loc) {
  return run(OpId::conv2d, {&x, &weight, &bias}, ConvAttrs{o}, loc);
}
Tensor conv2d_backward_input(const Tensor& dy, const Tensor& weight, const ConvAttrs& attrs, Loc loc) {
  return run(OpId::conv2d_backward_input, {&dy, &weight}, attrs, loc);
}
Tensor conv2d_backward_weight(const Tensor& dy, const Tensor& x, const ConvAttrs& attrs, Loc loc) {
  return run(OpId::conv2d_backward_weight, {&dy, &x}, attrs, loc);
}
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                    AttentionOptions o, Generator& g, Loc loc) {
  const AttentionAttrs attrs{o, o.dropout > 0 ? g.next() : RandomKey{}};
  return run(OpId::scaled_dot_product_attention, {&q, &k, &v, &mask}, attrs, loc);
}

Tensor max_pool2d(const Tensor& x, Pool2dOptions o, Loc l) { return run(OpId::max_pool2d, {&x}, attrs_of(o, x), l); }
std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, Pool2dOptions o, Loc loc) {
  const Outputs out = dispatch(OpId::max_pool2d, {&x}, attrs_of(o, x), loc);
  return {out[0], out[1]};
}
Tensor avg_pool2d(const Tensor& x, Pool2dOptions o, Loc l) { return run(OpId::avg_pool2d, {&x}, attrs_of(o, x), l); }
Tensor adaptive_avg_pool2d(const Tensor& x, std::int64_t height, std::int64_t width, Loc loc) {
  return run(OpId::adaptive_avg_pool2d, {&x}, attrs_of({}, x, {height, width}), loc);
}

BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                           const Tensor& var, bool training, double eps, bool relu, Loc loc) {
  const NormAttrs attrs{.eps = eps, .training = training, .relu = relu};
  const Outputs out = dispatch(OpId::batch_norm, {&x, &weight, &bias, &mean, &var}, attrs, loc);
  return {out[0], out[1], out[2]};
}
void batch_norm_update_(const Tensor& running_mean, const Tensor& running_var, const Tensor& batches,
                        const Tensor& mean, const Tensor& invstd, const RunningAttrs& attrs, Loc loc) {
  dispatch(OpId::batch_norm_update_, {&running_mean, &running_var, &batches, &mean, &invstd}, attrs, loc);
}
Tensor layer_norm(const Tensor& x, int dims, const Tensor& weight, const Tensor& bias, double eps, Loc loc) {
  return run(OpId::layer_norm, {&x, &weight, &bias}, NormAttrs{.eps = eps, .dims = dims}, loc);
}
Tensor rms_norm(const Tensor& x, int dims, const Tensor& weight, double eps, Loc loc) {
  return run(OpId::rms_norm, {&x, &weight}, NormAttrs{.eps = eps, .dims = dims}, loc);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& classes, CrossEntropyOptions o, Loc loc) {
  if (logits.dim() <= 2) return run(OpId::cross_entropy, {&logits, &classes}, CrossEntropyAttrs{o}, loc);
  // [N, C, d..]: classes last, then rows.
  Shape order{0};
  for (int i = 2; i < logits.dim(); ++i) order.push_back(i);
  order.push_back(1);
  Shape expected = logits.sizes();
  expected.erase(1);
  if (classes.sizes() != expected)
    throwf("cross_entropy: classes for logits {} must be {}, given {}", to_string(logits.sizes()), to_string(expected),
           to_string(classes.sizes()));
  const Tensor rows = flatten(permute(logits, order, loc), 0, -2, loc);
  const Tensor flat = reshape(classes, {-1}, loc);
  const Tensor result = run(OpId::cross_entropy, {&rows, &flat}, CrossEntropyAttrs{o}, loc);
  return o.reduction == Reduction::none ? reshape(result, classes.sizes(), loc) : result;
}

Tensor dropout(const Tensor& x, double p, Generator& g, Loc loc) {
  if (!(p >= 0 && p <= 1)) throwf("dropout: p is {}; allowed are 0 to 1", p);
  return unary(OpId::dropout, x, loc, DropoutAttrs{p, g.next()});
}
Tensor dropout_add(const Operand& x, const Tensor& residual, double p, Generator& g) {
  if (!(p >= 0 && p <= 1)) throwf("dropout_add: p is {}; allowed are 0 to 1", p);
  if (x.is_number()) throw_error("dropout_add: x is a number; it must be a tensor");
  const Tensor* const inputs[] = {x.tensor, &residual};
  return run(OpId::dropout_add, TensorRefs(inputs, 2, x.temporary ? 1u : 0u), DropoutAttrs{p, g.next()}, x.where);
}
Tensor embedding(const Tensor& w, const Tensor& i, Loc l) { return run(OpId::embedding, {&w, &i}, {}, l); }

Tensor view(const Tensor& x, const Shape& s, Loc l) {
  return unary(OpId::view, x, l, infer_size(s, x.numel(), "view"));
}
Tensor reshape(const Tensor& x, const Shape& sizes, Loc loc) {
  const Shape resolved = infer_size(sizes, x.numel(), "reshape");
  if (resolved == x.sizes()) return x;
  Shape strides;
  if (view_strides(x.sizes(), x.strides(), resolved, strides)) return unary(OpId::view, x, loc, resolved);
  return unary(OpId::view, clone(x, loc), loc, resolved);
}
Tensor permute(const Tensor& x, const Shape& dims, Loc loc) {
  Shape wrapped = dims;
  std::uint32_t seen = 0;
  for (std::int64_t& d : wrapped) {
    d = wrap_dim(d, x.dim(), "permute");
    seen |= 1u << d;
  }
  if (dims.size() != x.dim() || seen != (1u << x.dim()) - 1)
    throw_error("permute: " + to_string(dims) + " does not list every dim of " + to_string(x.sizes()) + " once");
  return unary(OpId::permute, x, loc, wrapped);
}
Tensor transpose(const Tensor& x, int a, int b, Loc loc) {
  if (x.dim() == 0) return x;
  Shape dims;
  for (int i = 0; i < x.dim(); ++i) dims.push_back(i);
  std::swap(dims[wrap_dim(a, x.dim(), "transpose")], dims[wrap_dim(b, x.dim(), "transpose")]);
  return unary(OpId::permute, x, loc, dims);
}
Tensor expand(const Tensor& x, const Shape& sizes, Loc loc) {
  Shape wanted = sizes;
  const int lead = sizes.size() - x.dim();
  bool fits = lead >= 0;
  for (int i = 0; fits && i < sizes.size(); ++i) {
    const std::int64_t own = i < lead ? 1 : x.sizes()[i - lead];
    if (wanted[i] == -1 && i >= lead) wanted[i] = own;
    fits = wanted[i] >= 0 && (own == 1 || own == wanted[i]);
  }
  if (!fits)
    throwf("expand: {} does not expand to {}; only dims of size 1 and new leading dims can grow", to_string(x.sizes()),
           to_string(sizes));
  return wanted == x.sizes() ? x : unary(OpId::expand, x, loc, wanted);
}
Tensor squeeze(const Tensor& x, int dim, Loc loc) {
  const int d = wrap_dim(dim, x.dim(), "squeeze");
  if (x.dim() == 0 || x.sizes()[d] != 1) return x;
  Shape sizes = x.sizes();
  sizes.erase(d);
  return unary(OpId::view, x, loc, sizes);
}
Tensor unsqueeze(const Tensor& x, int dim, Loc loc) {
  Shape sizes = x.sizes();
  sizes.insert(wrap_dim(dim, x.dim() + 1, "unsqueeze"), 1);
  return unary(OpId::view, x, loc, sizes);
}
Tensor flatten(const Tensor& x, int start, int end, Loc loc) {
  if (x.dim() == 0) return reshape(x, {1}, loc);
  const int a = wrap_dim(start, x.dim(), "flatten");
  const int b = wrap_dim(end, x.dim(), "flatten");
  if (a > b) throwf("flatten: start {} is after end {}", start, end);
  Shape sizes;
  std::int64_t run = 1;
  for (int i = 0; i < x.dim(); ++i) {
    run *= x.sizes()[i];
    if (i >= a && i < b) continue;
    sizes.push_back(run);
    run = 1;
  }
  return reshape(x, sizes, loc);
}
Tensor slice(const Tensor& x, int dim, Slice r, Loc loc) {
  if (x.dim() == 0) throw_error("slice: a 0-d tensor has no dim to slice");
  const int d = wrap_dim(dim, x.dim(), "slice");
  if (r.step < 1) throwf("slice: step {} is not allowed; it must be at least 1", r.step);
  const std::int64_t n = x.sizes()[d];
  const auto clamped = [n](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + n : i, 0, n); };
  const std::int64_t start = clamped(r.start.value_or(0));
  const std::int64_t stop = std::max(start, clamped(r.stop.value_or(n)));
  r.step = std::min(r.step, std::max<std::int64_t>(1, stop - start));  // larger steps give the same slice
  if (start == 0 && stop == n && r.step == 1) return x;
  return unary(OpId::slice, x, loc, SliceAttrs{d, start, stop, r.step, n});
}
Tensor narrow(const Tensor& x, int dim, std::int64_t start, std::int64_t length, Loc loc) {
  const int d = wrap_dim(dim, x.dim(), "narrow");
  const std::int64_t n = x.dim() ? x.sizes()[d] : 0;
  if (start < 0 || start > n || length < 0 || length > n - start)
    throwf("narrow: start {} and length {} leave dim {} of {}", start, length, d, to_string(x.sizes()));
  return slice(x, d, {start, start + length}, loc);
}
Tensor select(const Tensor& x, int dim, std::int64_t index, Loc loc) {
  if (x.dim() == 0) throw_error("select: a 0-d tensor has no dim to select from; use item()");
  const int d = wrap_dim(dim, x.dim(), "select");
  const std::int64_t n = x.sizes()[d];
  const std::int64_t i = index < 0 ? index + n : index;
  if (i < 0 || i >= n) throwf("select: index {} is out of range for dim {} of {}", index, d, to_string(x.sizes()));
  return squeeze(slice(x, d, {i, i + 1}, loc), d, loc);
}
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim, Loc loc) {
  if (size < 1) throwf("split: size {} is not allowed; it must be at least 1", size);
  std::vector<Tensor> parts{slice(x, dim, {0, size}, loc)};
  for (std::int64_t i = size; i < x.size(dim); i += size) parts.push_back(slice(x, dim, {i, i + size}, loc));
  return parts;
}

Tensor contiguous(const Tensor& x, Loc loc) { return x.is_contiguous() ? x : clone(x, loc); }
Tensor channels_last(const Tensor& x, Loc loc) {
  if (x.dim() != 4) throwf("channels_last: takes images [N, C, H, W], given {}", to_string(x.sizes()));
  const Tensor rows = permute(x, {0, 2, 3, 1}, loc);
  return rows.is_contiguous() ? x : permute(clone(rows, loc), {0, 3, 1, 2}, loc);
}
Tensor cat(const std::vector<Tensor>& tensors, int dim, Loc loc) {
  if (tensors.empty()) throw_error("cat: needs at least one tensor");
  const std::vector<const Tensor*> refs = pointers_to(tensors);
  const DimAttrs attrs{wrap_dim(dim, tensors[0].dim(), "cat")};
  return run(OpId::cat, TensorRefs(refs.data(), static_cast<int>(refs.size())), attrs, loc);
}
Tensor stack(const std::vector<Tensor>& tensors, int dim, Loc loc) {
  std::vector<Tensor> rows;
  rows.reserve(tensors.size());
  for (const Tensor& t : tensors) {
    if (t.sizes() != tensors[0].sizes())
      throwf("stack: all shapes must be equal, given {} and {}", to_string(tensors[0].sizes()), to_string(t.sizes()));
    rows.push_back(unsqueeze(t, dim, loc));
  }
  if (rows.empty()) throw_error("stack: needs at least one tensor");
  return cat(rows, wrap_dim(dim, rows[0].dim(), "stack"), loc);
}
Tensor gather(const Tensor& x, int dim, const Tensor& i, Loc l) { return indexed(OpId::gather, {&x, &i}, dim, l); }
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& src, Loc loc) {
  return indexed(OpId::scatter_add, {&x, &index, &src}, dim, loc);
}
Tensor index_select(const Tensor& x, int dim, const Tensor& index, Loc loc) {
  return indexed(OpId::index_select, {&x, &index}, dim, loc);
}
Tensor index_add(const Tensor& src, int dim, const Tensor& index, std::int64_t size, Loc loc) {
  return indexed(OpId::index_add, {&src, &index}, dim, loc, size);
}
Tensor pad(const Tensor& x, const Shape& before, const Shape& after, double value, Loc loc) {
  if (before.size() != x.dim() || after.size() != x.dim())
    throwf("pad: before {} and after {} need one entry for each dim of {}", to_string(before), to_string(after),
           to_string(x.sizes()));
  check_holds(x.dtype(), value, "pad");
  return unary(OpId::pad, x, loc, PadAttrs{before, after, value});
}

Tensor sum_to(const Tensor& x, const Shape& sizes, Loc loc) {
  if (x.sizes() == sizes) return x;
  if (broadcast_shapes(sizes, x.sizes(), "sum_to") != x.sizes())
    throwf("sum_to: {} does not broadcast to {}", to_string(sizes), to_string(x.sizes()));
  const int lead = x.dim() - sizes.size();
  Shape dims;
  for (int i = 0; i < x.dim(); ++i)
    if (i < lead || (sizes[i - lead] == 1 && x.sizes()[i] != 1)) dims.push_back(i);
  return reshape(dims.empty() ? x : sum(x, dims, true, loc), sizes, loc);
}

}  // namespace gradual
