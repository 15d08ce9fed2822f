#include "derived_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "../formats/format.h"
#include "../support/throwf.h"
#include "dispatch.h"
#include "operand_policy.h"

namespace gradual {

Tensor isnan(const Tensor& x, Loc loc) { return ne({x, loc}, x); }
Tensor isinf(const Tensor& x, Loc l) { return logical_or({eq({x, l}, INFINITY), l}, eq({x, l}, -INFINITY)); }
Tensor isfinite(const Tensor& x, Loc l) { return logical_and({gt({x, l}, -INFINITY), l}, lt({x, l}, INFINITY)); }

Tensor any(const Tensor& x, const Shape& dims, bool keepdim, Loc loc) {
  return ne({sum(ne({x, loc}, 0), dims, keepdim, loc), loc}, 0);
}
Tensor all(const Tensor& x, const Shape& dims, bool keepdim, Loc loc) {
  return eq({sum(eq({x, loc}, 0), dims, keepdim, loc), loc}, 0);
}
bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol) {
  const Tensor near = le(abs(sub(a, b)), add(mul(abs(b), rtol), atol));
  return all(logical_or(logical_and(near, isfinite(b)), eq(a, b))).item() != 0;
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value, Loc loc) {
  return where(mask, {value, loc}, {x, loc});
}
Tensor triu(const Tensor& x, std::int64_t diagonal, Loc loc) {
  if (x.dim() < 2) throwf("triu: a matrix or a batch of matrices is required, not {}", to_string(x.sizes()));
  const Tensor below = tril(ones(x.sizes().last(2), {.dtype = DType::bool_, .device = x.device()}), diagonal - 1, loc);
  return masked_fill(x, below, 0, loc);
}
Tensor flip(const Tensor& x, const Shape& dims, Loc loc) {
  Tensor y = x;
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim(static_cast<int>(dim), x.dim(), "flip");
    const Tensor index =
        arange(static_cast<double>(x.size(d)) - 1, -1, -1, {.dtype = DType::i64, .device = x.device()});
    y = index_select(y, d, index, loc);
  }
  return y;
}
Tensor roll(const Tensor& x, std::int64_t shift, int dim, Loc loc) {
  const int d = wrap_dim(dim, x.dim(), "roll");
  const std::int64_t n = x.size(d);
  const std::int64_t tail = n == 0 ? 0 : ((shift % n) + n) % n;  // elements that come back at the start
  return tail == 0 ? x : cat({narrow(x, d, n - tail, tail, loc), narrow(x, d, 0, n - tail, loc)}, d, loc);
}
Tensor repeat(const Tensor& x, const Shape& times, Loc loc) {
  const int lead = times.size() - x.dim();
  if (lead < 0) throwf("repeat: {} has fewer entries than {} has dims", to_string(times), to_string(x.sizes()));
  Shape sizes = x.sizes();
  for (int i = 0; i < lead; ++i) sizes.insert(0, 1);
  Tensor y = reshape(x, sizes, loc);
  for (int i = 0; i < times.size(); ++i) {
    if (times[i] < 0) throwf("repeat: {} has a negative entry", to_string(times));
    if (times[i] == 0) y = narrow(y, i, 0, 0, loc);
    else if (times[i] > 1) y = cat(std::vector<Tensor>(static_cast<std::size_t>(times[i]), y), i, loc);
  }
  return y;
}
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, int dim, Loc loc) {
  if (count < 1) throwf("chunk: count {} is not allowed; it must be at least 1", count);
  return split(x, std::max<std::int64_t>(1, (x.size(dim) + count - 1) / count), dim, loc);
}

namespace {

// f32 of half numbers; f64 and integers as they are.
Tensor wide(const Tensor& x, Loc loc) { return is_half(x.dtype()) ? cast(x, DType::f32, loc) : x; }

// x in the dtype in which autocast lets the op `like` compute; x itself outside of autocast.
Tensor operand_of(OpId like, const Tensor& x, Loc loc) {
  const auto* policy = dynamic_cast<const OperandPolicy*>(chain().amp);
  if (!policy || !x.defined()) return x;
  const CauseScope cause(CauseKind::autocast, fmt::format("amp: as {}", to_string(like)));
  return cast(x, policy->operand_dtype(like, x), loc);
}

// For each row the power of two that brings its largest magnitude to about 1, so that squares neither overflow nor
// vanish. No other bit of a result changes.
Tensor row_scale(const Tensor& x, const Shape& dims, Loc loc) {
  const double most = std::ilogb(float_info(x.dtype()).max) - 1;
  const Tensor exponent = floor(log2(max(abs(x.detach(), loc), dims, true, loc), loc), loc);
  return exp2(neg(clamp(exponent, -most, most, loc), loc), loc);
}

// x without `dims` (none: all), whose size is 1.
Tensor without_dims(const Tensor& x, const Shape& dims, Loc loc) {
  std::uint32_t dropped = dims.empty() ? ~0u : 0;
  for (const std::int64_t dim : dims) dropped |= 1u << wrap_dim(dim, x.dim(), "stddev");
  Shape kept;
  for (int i = 0; i < x.dim(); ++i)
    if ((dropped >> i & 1) == 0) kept.push_back(x.size(i));
  return reshape(x, kept, loc);
}

// The places of the first `count` of each row, in order.
template <class T> Tensor sorted_places(const Tensor& x, std::int64_t count, bool descending) {
  const std::vector<T> all = x.to_vector<T>();
  std::vector<std::int64_t> places, row(static_cast<std::size_t>(x.size(-1)));
  for (auto from = all.begin(); from != all.end(); from += std::ssize(row)) {
    const auto less = [&](std::int64_t i, std::int64_t j) {
      return from[i] < from[j] || (from[j] != from[j] && from[i] == from[i]);
    };
    std::iota(row.begin(), row.end(), 0);
    std::ranges::stable_sort(row, [&](auto i, auto j) { return descending ? less(j, i) : less(i, j); });
    places.insert(places.end(), row.begin(), row.begin() + count);
  }
  Shape sizes = x.sizes();
  sizes[x.dim() - 1] = count;
  return from_data(places, sizes);
}

}  // namespace

Tensor stddev(const Tensor& x, const Shape& dims, bool keepdim, double correction, Loc loc) {
  if (!x.is_floating() || x.numel() == 0) return sqrt(var(x, dims, keepdim, correction, loc), loc);
  const Tensor numbers = wide(x, loc);
  const Tensor scale = row_scale(numbers, dims, loc);
  const Tensor variance = var(mul({numbers, loc}, scale), dims, true, correction, loc);
  // The root of 0 has an infinite slope; equal numbers get the gradient 0, as from norm.
  const Tensor equal = eq({variance, loc}, 0);
  const Tensor root = where(equal, {0, loc}, sqrt(where(equal, {1, loc}, {variance, loc}), loc));
  const Tensor y = cast(div({root, loc}, scale), x.dtype(), loc);
  return keepdim ? y : without_dims(y, dims, loc);
}

ValuesAndIndices max_with_indices(const Tensor& x, int dim, bool keepdim, Loc loc) {
  const Tensor index = argmax(x, dim, true, loc);
  const Tensor values = gather(x, dim, index, loc);
  if (keepdim) return {values, index};
  return {squeeze(values, dim, loc), squeeze(index, dim, loc)};
}
ValuesAndIndices sort(const Tensor& x, int dim, bool descending, Loc loc) {
  return x.dim() == 0 ? ValuesAndIndices{x, zeros({}, DType::i64).to(x.device())}
                      : topk(x, x.size(dim), dim, descending, loc);
}
ValuesAndIndices topk(const Tensor& x, std::int64_t count, int dim, bool largest, Loc loc) {
  if (count < 0 || count > x.size(dim)) throwf("topk: {} of {} elements", count, x.size(dim));
  const Tensor rows = transpose(x.detach(), dim, -1);
  const Tensor found =
      x.is_floating() ? sorted_places<double>(rows, count, largest) : sorted_places<std::int64_t>(rows, count, largest);
  const Tensor index = contiguous(transpose(found, dim, -1)).to(x.device());
  return {gather(x, dim, index, loc), index};
}

Tensor cumsum(const Tensor& operand, int dim, Loc loc) {
  const Tensor x = operand_of(OpId::sum, operand, loc);
  const int d = wrap_dim(dim, x.dim(), "cumsum");
  Tensor y = wide(x, loc);
  const Shape none = Shape::filled(x.dim(), 0);
  for (std::int64_t step = 1; step < x.numel() && step < x.size(d); step *= 2) {  // Hillis and Steele 1986
    Shape before = none;
    before[d] = step;
    y = add({y, loc}, pad(narrow(y, d, 0, x.size(d) - step, loc), before, none, 0, loc));
  }
  return cast(y, x.dtype(), loc);
}
Tensor prod(const Tensor& operand, int dim, bool keepdim, Loc loc) {
  const Tensor x = operand_of(OpId::sum, operand, loc);
  if (x.dim() == 0) return prod(reshape(x, 1, loc), dim, keepdim, loc);
  const int d = wrap_dim(dim, x.dim(), "prod");
  Tensor y = wide(x, loc);
  const Shape none = Shape::filled(x.dim(), 0);
  Shape one = none;
  one[d] = 1;
  while (y.size(d) != 1) {  // halves, with a 1 more where their number is odd
    if (const std::int64_t half = y.size(d) / 2; y.size(d) % 2 == 1 || half == 0) y = pad(y, none, one, 1, loc);
    else y = mul({narrow(y, d, 0, half, loc), loc}, narrow(y, d, half, half, loc));
  }
  return cast(keepdim ? y : squeeze(y, d, loc), x.dtype(), loc);
}
Tensor prod(const Tensor& x, Loc loc) { return prod(reshape(x, x.numel(), loc), 0, false, loc); }
Tensor cumprod(const Tensor& operand, int dim, Loc loc) {
  const Tensor x = operand_of(OpId::sum, operand, loc);
  const int d = wrap_dim(dim, x.dim(), "cumprod");
  Tensor y = wide(x, loc);
  const Shape none = Shape::filled(x.dim(), 0);
  for (std::int64_t step = 1; step < x.numel() && step < x.size(d); step *= 2) {  // as cumsum
    Shape before = none;
    before[d] = step;
    y = mul({y, loc}, pad(narrow(y, d, 0, x.size(d) - step, loc), before, none, 1, loc));
  }
  return cast(y, x.dtype(), loc);
}

Tensor nan_to_num(const Tensor& x, double nan, std::optional<double> inf, std::optional<double> negative_inf, Loc loc) {
  if (!x.is_floating()) return x;
  const double most = x.dtype() == DType::f64 ? std::numeric_limits<double>::max() : format_of(x.dtype()).max();
  const Tensor finite_above = where(eq({x, loc}, INFINITY), {inf.value_or(most), loc}, {x, loc});
  const Tensor finite = where(eq({x, loc}, -INFINITY), {negative_inf.value_or(-most), loc}, {finite_above, loc});
  return where(isnan(x, loc), {nan, loc}, {finite, loc});
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, Conv1dOptions o, Loc loc) {
  if (x.dim() != 3 || weight.dim() != 3)
    throwf("conv1d: x {} and weight {}; allowed are [N, C, L] and [out, C/groups, kernel]", to_string(x.sizes()),
           to_string(weight.sizes()));
  const Conv2dOptions two{{1, o.stride}, {0, o.padding}, {1, o.dilation}, o.groups};
  return squeeze(conv2d(unsqueeze(x, 2, loc), unsqueeze(weight, 2, loc), bias, two, loc), 2, loc);
}
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, ConvTranspose2dOptions o, Loc loc) {
  if (x.dim() != 4 || weight.dim() != 4)
    throwf("conv_transpose2d: x {} and weight {}; allowed are [N, C, H, W] and [C, out/groups, kh, kw]",
           to_string(x.sizes()), to_string(weight.sizes()));
  ConvAttrs attrs{{o.stride, o.padding, o.dilation, o.groups}};
  for (int i = 0; i < 2; ++i) {
    if (o.output_padding[i] < 0 || o.output_padding[i] >= std::max(o.stride[i], o.dilation[i]))
      throwf("conv_transpose2d: output_padding {} must be at least 0 and less than stride {} or dilation {}",
             o.output_padding[i], o.stride[i], o.dilation[i]);
    attrs.size[i] = (x.size(2 + i) - 1) * o.stride[i] - 2 * o.padding[i] + o.dilation[i] * (weight.size(2 + i) - 1) +
                    1 + o.output_padding[i];
  }
  const Tensor y = conv2d_backward_input(x, weight, attrs, loc);
  return bias.defined() ? add({y, loc}, reshape(cast(bias, y.dtype(), loc), {-1, 1, 1}, loc)) : y;
}

namespace {

// Where pixel i of `size` lies among n pixels, if pixels are squares, and if they are points and the corners stay.
double square_place(std::int64_t i, std::int64_t n, std::int64_t size) {
  const double middle = static_cast<double>(i) + 0.5;
  return std::max(0.0, middle * static_cast<double>(n) / static_cast<double>(size) - 0.5);
}
double corner_place(std::int64_t i, std::int64_t n, std::int64_t size) {
  return size == 1 ? 0 : static_cast<double>(i * (n - 1)) / static_cast<double>(size - 1);
}

// Applies along(image, dim, its size there, the new size) to height and width.
template <class F> Tensor resized(const char* op, const Tensor& x, const Shape& to, F along) {
  if (x.dim() != 4 || x.size(2) < 1 || x.size(3) < 1 || to[0] < 1 || to[1] < 1)
    throwf("{}: {} to {} x {}; allowed are images [N, C, H, W] and sizes of at least 1", op, to_string(x.sizes()),
           to[0], to[1]);
  return along(along(x, 2, x.size(2), to[0]), 3, x.size(3), to[1]);
}

}  // namespace

Tensor adaptive_max_pool2d(const Tensor& x, std::int64_t height, std::int64_t width, Loc loc) {
  return resized("adaptive_max_pool2d", x, {height, width}, [&](const Tensor& t, int dim, auto n, auto parts) {
    std::vector<Tensor> out;
    for (std::int64_t i = 0; i < parts; ++i) {
      const std::int64_t first = i * n / parts;
      const std::int64_t last = ((i + 1) * n + parts - 1) / parts;
      out.push_back(max(narrow(t, dim, first, last - first, loc), dim, true, loc));
    }
    return cat(out, dim, loc);
  });
}
Tensor interpolate(const Tensor& x, std::int64_t height, std::int64_t width, Interpolation by, Loc loc) {
  const bool nearest = by == Interpolation::nearest;
  const bool corners = by == Interpolation::bilinear_corners;
  const Tensor from = nearest ? x : wide(x, loc);
  const auto along = [&](const Tensor& t, int dim, auto n, auto size) {
    std::vector<std::int64_t> low, high;
    std::vector<double> share;  // of the pixel at `high`
    for (std::int64_t i = 0; i < size; ++i) {
      const double at = corners ? corner_place(i, n, size) : square_place(i, n, size);
      low.push_back(nearest ? i * n / size : static_cast<std::int64_t>(at));
      high.push_back(std::min(low.back() + 1, n - 1));
      share.push_back(at - static_cast<double>(low.back()));
    }
    const auto pixels = [&](const std::vector<std::int64_t>& places) {
      return index_select(t, dim, from_data(places, size, {.dtype = DType::i64}).to(t.device()), loc);
    };
    if (nearest || size == n) return pixels(low);
    Shape sizes = Shape::filled(4, 1);
    sizes[dim] = size;
    const Tensor part = from_data(share, sizes, options_of(t));
    const Tensor first = pixels(low);
    return add({first, loc}, mul({sub({pixels(high), loc}, first), loc}, part));
  };
  return cast(resized("interpolate", from, {height, width}, along), x.dtype(), loc);
}

Tensor reduced_loss(const Tensor& each, Reduction by, Loc loc) {
  switch (by) {
    case Reduction::none: return each;
    case Reduction::sum: return sum(each, {}, false, loc);
    default: return mean(each, {}, false, loc);
  }
}
Tensor huber_loss(const Tensor& x, const Tensor& y, Reduction by, double delta, Loc loc) {
  if (x.sizes() != y.sizes() || !(delta > 0))
    throwf("huber_loss: {} and {} with delta {}; allowed are equal shapes and a delta above 0", to_string(x.sizes()),
           to_string(y.sizes()), delta);
  const Tensor off = sub({wide(x, loc), loc}, wide(y, loc));
  const Tensor d = abs(off, loc);
  const Tensor far = mul({sub({d, loc}, delta / 2), loc}, delta);
  const Tensor near = le({d, loc}, delta);
  const Tensor small = where(near, {off, loc}, {0, loc});  // the square of Inf would have a gradient of NaN
  return reduced_loss(where(near, mul({square(small, loc), loc}, 0.5), far), by, loc);
}
namespace {

// Error for sizes of classes that do not fit x [N, C, d..], and for a class out of range.
void check_classes(const char* op, const Tensor& x, const Tensor& classes, std::int64_t ignored) {
  Shape expected = x.sizes();
  if (x.dim() >= 2) expected.erase(1);
  if (x.dim() < 2 || classes.sizes() != expected || classes.dtype() != DType::i64)
    throwf("{}: {} and classes {} {}; allowed are [N, C] or [N, C, d..] and i64 [N] or [N, d..]", op,
           to_string(x.sizes()), to_string(classes.dtype()), to_string(classes.sizes()));
  if (!classes.device().is_cpu()) return;
  const std::vector<std::int64_t> all = classes.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] != ignored && (all[i] < 0 || all[i] >= x.size(1)))
      throwf("{}: class {} of element {}; allowed are 0 to {} and ignore_index, {}", op, all[i], i, x.size(1) - 1,
             ignored);
}

// A number for each class, [C], so that it broadcasts over x [N, C, d..].
Tensor along_classes(const char* op, const Tensor& weight, const Tensor& x, Loc loc) {
  if (x.dim() < 2 || weight.dim() != 1 || weight.size(0) != x.size(1) || !weight.is_floating())
    throwf("{}: weights {} {} for {}; allowed are floats [C]", op, to_string(weight.dtype()), to_string(weight.sizes()),
           to_string(x.sizes()));
  Shape sizes = Shape::filled(x.dim(), 1);
  sizes[1] = x.size(1);
  return reshape(wide(weight, loc), sizes, loc);
}

}  // namespace

Tensor nll_loss(const Tensor& log_p, const Tensor& classes, const NllOptions& o, Loc loc) {
  check_classes("nll_loss", log_p, classes, o.ignore_index);
  const Tensor ignored = eq({classes, loc}, static_cast<double>(o.ignore_index));
  const Tensor index = unsqueeze(where(ignored, {0, loc}, {classes, loc}), 1, loc);
  const Tensor x = wide(log_p, loc);
  Tensor weights = ones_like(x);
  if (o.weight.defined()) weights = mul({weights, loc}, along_classes("nll_loss", o.weight, x, loc));
  const Tensor weight = where(ignored, {0, loc}, {squeeze(gather(weights, 1, index, loc), 1, loc), loc});
  // An ignored element adds 0, whatever its log-probability is.
  const Tensor chosen = where(ignored, {0, loc}, {squeeze(gather(x, 1, index, loc), 1, loc), loc});
  const Tensor each = neg(mul({chosen, loc}, weight), loc);
  if (o.reduction != Reduction::mean) return reduced_loss(each, o.reduction, loc);
  return div({sum(each, {}, false, loc), loc}, sum(weight, {}, false, loc));
}
Tensor nll_loss(const Tensor& log_p, const Tensor& classes, Reduction by, Loc loc) {
  return nll_loss(log_p, classes, NllOptions{.reduction = by}, loc);
}
Tensor weighted_cross_entropy(const Tensor& logits, const Tensor& classes, const Tensor& weight, CrossEntropyOptions o,
                              Loc loc) {
  check_classes("weighted_cross_entropy", logits, classes, o.ignore_index);
  const Tensor log_p = log_softmax(wide(logits, loc), 1, loc);
  const NllOptions options{o.reduction, o.ignore_index, weight};
  const Tensor hard = nll_loss(log_p, classes, options, loc);
  if (o.label_smoothing == 0) return hard;
  const Tensor weighted = mul({log_p, loc}, along_classes("weighted_cross_entropy", weight, log_p, loc));
  const Tensor ignored = eq({classes, loc}, static_cast<double>(o.ignore_index));
  const Tensor all = neg(sum(weighted, 1, false, loc), loc);
  Tensor smooth = reduced_loss(where(ignored, {0, loc}, {all, loc}),
                               o.reduction == Reduction::mean ? Reduction::sum : o.reduction, loc);
  if (o.reduction == Reduction::mean) {
    const NllOptions counted{Reduction::sum, o.ignore_index, weight};
    smooth = div({smooth, loc}, nll_loss(full_like(log_p, -1), classes, counted, loc));
  }
  const double share = o.label_smoothing / static_cast<double>(logits.size(1));
  return add({mul({hard, loc}, 1 - o.label_smoothing), loc}, mul({smooth, loc}, share));
}
Tensor soft_cross_entropy(const Tensor& logits, const Tensor& probabilities, CrossEntropyOptions o, Loc loc) {
  if (logits.dim() < 2 || logits.sizes() != probabilities.sizes() || !probabilities.is_floating())
    throwf(
        "soft_cross_entropy: logits {} and probabilities {} {}; allowed are floats of equal sizes, [N, C] or "
        "[N, C, d..]",
        to_string(logits.sizes()), to_string(probabilities.dtype()), to_string(probabilities.sizes()));
  Tensor target = wide(probabilities, loc);
  if (o.label_smoothing != 0) {
    const double share = o.label_smoothing / static_cast<double>(logits.size(1));
    target = add({mul({target, loc}, 1 - o.label_smoothing), loc}, share);
  }
  const Tensor log_p = log_softmax(wide(logits, loc), 1, loc);
  return reduced_loss(neg(sum(mul({target, loc}, log_p), 1, false, loc), loc), o.reduction, loc);
}
Tensor kl_div(const Tensor& log_q, const Tensor& p, Reduction by, Loc loc) {
  const Tensor w = wide(p, loc);
  const Tensor none = eq({w, loc}, 0);
  const Tensor log_p = log(where(none, {1, loc}, {w, loc}), loc);
  return reduced_loss(where(none, {0, loc}, mul({w, loc}, sub({log_p, loc}, wide(log_q, loc)))), by, loc);
}

// The largest of log w + Gumbel noise is a draw with weights w; the `count` largest are draws without replacement
// (Gumbel-max: Vieira 2014).
Tensor multinomial(const Tensor& weights, std::int64_t count, bool replacement, Generator& g) {
  const Tensor w = weights.detach().to(DType::f64);
  const std::int64_t needed = replacement ? 1 : count;
  if (w.dim() < 1 || count < 1 || !all(w >= 0).item() || !all(sum(w > 0, -1) >= needed).item())
    throwf("multinomial: {} draws from {}; every row needs weights of at least 0, {} of them above 0", count,
           to_string(w.sizes()), needed);
  Shape sizes = w.sizes();
  if (replacement) sizes.insert(w.dim() - 1, count);
  const Tensor noise = -log(-log(rand(sizes, {.dtype = DType::f64, .device = w.device()}, g)));
  return replacement ? argmax(log(w).unsqueeze(-2) + noise, -1) : topk(log(w) + noise, count).indices;
}

Tensor full_like(const Tensor& t, double value) { return empty_like(t).fill_(value); }
Tensor randn_like(const Tensor& t, Generator& g) { return randn(t.sizes(), options_of(t), g); }
Tensor bernoulli(const Tensor& p, Generator& g) {
  return cast(lt(rand(p.sizes(), {.dtype = DType::f32, .device = p.device()}, g), p), p.dtype());
}

}  // namespace gradual
