// conv2d and its two gradients by oneDNN. bf16 and f8 operands are multiplied as bf16 if the processor has bf16
// products, all others as f32. Sums are f32. oneDNN's fast kernels read blocks of channels: images are reordered to the
// layout that oneDNN chooses, and back.
#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "../cpu/gemm.h"
#include "../formats/accumulator.h"
#include "../kernels/contraction_operand.h"
#include "../kernels/copies.h"
#include "../kernels/loops.h"
#include "../ops/cpu_backend.h"
#include "../support/parallel.h"
#include "kernels.h"
#include "primitive.h"

namespace gradual::onednn {
namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Argument = Primitive::Argument;

inline constexpr std::int64_t kParts = 16;  // parts of the batch in deterministic mode, at most

bool is_channels_last(const Tensor& t) { return gradual::is_channels_last(t.sizes(), t.strides()); }

// y = conv2d(x, w) of images [N, C, H, W] and weights [O, C/groups, kh, kw], or a gradient of it by x or w.
struct Convolution {
  OpId op;
  ConvAttrs attrs;
  Shape x, w, y;
  DType in, out;  // dtype of both operands, and of the result
  bool bias = false;
  // the images are channels-last
  bool x_last = false;
  bool y_last = false;
  int threads = 1;

  bool makes(OpId wanted) const { return op == wanted; }
  // True if channels-last images are used without reorders. Not if oneDNN 2.6 for AVX2 gathers the pixels of a strided
  // 1x1 kernel: with channels that do not fill a register, it adds numbers from beyond the images to weight gradients.
  bool stays_last() const {
    const bool gathers = w[2] * w[3] == 1 && attrs.stride[0] * attrs.stride[1] > 1 && x[1] % 8 != 0;
    return x_last && y_last && !gathers;
  }
  std::int64_t work() const { return numel(y) * w[1] * w[2] * w[3]; }
  DType x_dtype() const { return makes(OpId::conv2d_backward_input) ? out : in; }
  DType w_dtype() const { return makes(OpId::conv2d_backward_weight) ? out : in; }
  DType y_dtype() const { return makes(OpId::conv2d) ? out : in; }
  // The layouts that the tensors have, and those that oneDNN may choose.
  Desc given_x() const { return image(x, x_dtype(), x_last ? Tag::nhwc : Tag::nchw); }
  Desc given_y() const { return image(y, y_dtype(), y_last ? Tag::nhwc : Tag::nchw); }
  Desc given_w() const { return weights(attrs.groups > 1 ? Tag::goihw : Tag::oihw); }
  Desc wanted_x() const { return image(x, x_dtype(), stays_last() ? Tag::nhwc : Tag::any); }
  Desc wanted_y() const { return image(y, y_dtype(), stays_last() ? Tag::nhwc : Tag::any); }
  Desc wanted_w() const { return weights(Tag::any); }
  Desc bias_layout() const { return {{w[0]}, dnnl::memory::data_type::f32, Tag::x}; }

 private:
  static Desc image(const Shape& s, DType dtype, Tag tag) { return {{s[0], s[1], s[2], s[3]}, type_of(dtype), tag}; }
  Desc weights(Tag tag) const {
    dnnl::memory::dims sizes(w.begin(), w.end());
    if (attrs.groups > 1) {
      sizes[0] /= attrs.groups;
      sizes.insert(sizes.begin(), attrs.groups);
    }
    return {sizes, type_of(w_dtype()), tag};
  }
};

// oneDNN's convolutions by im2col and GEMM are slower than those of core/cpu.
bool is_worth(std::string_view implementation) {
  return is_fast(implementation) && implementation.find("gemm") == std::string_view::npos;
}

// The primitive_desc of `Kind` for these layouts. That of a gradient takes the forward one as a hint.
template <class Kind, class... Forward> auto describe_as(const Convolution& c, const Forward&... forward) {
  const ConvAttrs& a = c.attrs;
  const dnnl::memory::dims stride{a.stride[0], a.stride[1]};
  const dnnl::memory::dims padding{a.padding[0], a.padding[1]};
  const dnnl::memory::dims dilation{a.dilation[0] - 1, a.dilation[1] - 1};
  const auto direct = dnnl::algorithm::convolution_direct;
  const auto training = dnnl::prop_kind::forward_training;
  const Desc x = c.wanted_x();
  const Desc w = c.wanted_w();
  const Desc y = c.wanted_y();
  if constexpr (sizeof...(forward) > 0)
    return describe_gradient<Kind>(forward..., direct, x, w, y, stride, dilation, padding, padding);
  else if (c.bias)
    return describe<Kind>(training, direct, x, w, c.bias_layout(), y, stride, dilation, padding, padding);
  else return describe<Kind>(training, direct, x, w, y, stride, dilation, padding, padding);
}

template <class Kind, class How>
std::unique_ptr<Primitive> made(const Convolution& c, const How& how, Argument x, Argument w, Argument y) {
  if (!is_worth(how.impl_info_str())) return nullptr;
  std::vector<Argument> arguments{x, w, y};
  if (c.bias) arguments.push_back({DNNL_ARG_BIAS, c.bias_layout()});
  return std::make_unique<Primitive>(Kind(how), how.scratchpad_desc(), arguments);
}

std::unique_ptr<Primitive> make(const Convolution& c) {
  using enum Argument::As;
  Convolution hint = c;  // the forward convolution has one dtype, that of the operands
  if (!c.makes(OpId::conv2d)) hint.out = c.in;
  const auto forward = describe_as<dnnl::convolution_forward>(hint);
  if (c.op == OpId::conv2d_backward_input) {
    using Kind = dnnl::convolution_backward_data;
    const auto how = describe_as<Kind>(c, forward);
    return made<Kind>(c, how, {DNNL_ARG_DIFF_SRC, how.diff_src_desc(), written, c.given_x()},
                      {DNNL_ARG_WEIGHTS, how.weights_desc(), read, c.given_w()},
                      {DNNL_ARG_DIFF_DST, how.diff_dst_desc(), read, c.given_y()});
  }
  if (c.op == OpId::conv2d_backward_weight) {
    using Kind = dnnl::convolution_backward_weights;
    const auto how = describe_as<Kind>(c, forward);
    return made<Kind>(c, how, {DNNL_ARG_SRC, how.src_desc(), read, c.given_x()},
                      {DNNL_ARG_DIFF_WEIGHTS, how.diff_weights_desc(), written, c.given_w()},
                      {DNNL_ARG_DIFF_DST, how.diff_dst_desc(), read, c.given_y()});
  }
  return made<dnnl::convolution_forward>(c, forward, {DNNL_ARG_SRC, forward.src_desc(), read, c.given_x()},
                                         {DNNL_ARG_WEIGHTS, forward.weights_desc(), read, c.given_w()},
                                         {DNNL_ARG_DST, forward.dst_desc(), written, c.given_y()});
}

// Null if oneDNN has no fast kernel. The primitive is for the threads of the innermost Team.
Primitive* primitive_of(const Convolution& c) {
  const ConvAttrs& a = c.attrs;
  Key key(static_cast<std::int64_t>(c.op));
  key.add(c.x).add(c.w).add(c.y).add(a.groups).add(static_cast<int>(c.in)).add(static_cast<int>(c.out));
  for (int i = 0; i < 2; ++i) key.add(a.stride[i]).add(a.padding[i]).add(a.dilation[i]);
  key.add(c.bias).add(c.x_last).add(c.y_last).add(c.threads);
  return find(key, [&] { return make(c); });
}

// x, w and y are passed in this order, whichever of them is the result. False, with nothing written, if oneDNN has no
// fast kernel.
bool run(const Convolution& c, const void* x, const void* w, const void* y, const float* bias) {
  const Team team(c.threads);
  Primitive* const primitive = primitive_of(c);
  if (!primitive) return false;
  primitive->run({x, w, y, bias});
  return true;
}

std::int64_t image_bytes(const Shape& sizes, DType dtype) {
  return sizes[1] * sizes[2] * sizes[3] * static_cast<std::int64_t>(size_of(dtype));
}

// The number of images per part: few enough to stay in a cache while they are reordered and convolved, yet enough to be
// worth a thread.
std::int64_t part_of(const Convolution& c) {
  constexpr std::int64_t kCached = 512 << 10;
  const std::int64_t images = c.x[0];
  // Images that are not reordered need no such cache.
  const std::int64_t bytes = image_bytes(c.x, c.x_dtype()) + image_bytes(c.y, c.y_dtype());
  const std::int64_t cached = c.stays_last() ? images : kCached / bytes;
  const std::int64_t worth = cpu::kWorthThreads * images / std::max<std::int64_t>(1, c.work());
  const std::int64_t threads = deterministic() ? kParts : num_threads();
  return cpu::even_part(images, std::max({std::int64_t{1}, worth, std::min(cached, (images + threads - 1) / threads)}));
}

// The images x or y of a convolution that reads or writes them as `dtype`: in place, or converted a part at a time,
// without a copy of all images.
struct ConvertedImages {
  const Tensor& tensor;
  DType dtype;
  std::int64_t numbers;  // elements per part; the last may have fewer
  bool written;
  bool tf32 = !written && cpu::rounds_to_tf32(tensor.dtype());
  bool converted = tf32 || tensor.dtype() != dtype;

  char* at(std::int64_t part) const { return static_cast<char*>(const_cast<void*>(tensor.raw())) + part * step(); }
  std::int64_t step() const { return numbers * static_cast<std::int64_t>(size_of(tensor.dtype())); }
  std::int64_t scratch() const {
    return converted ? (numbers * static_cast<std::int64_t>(size_of(dtype)) + 63) / 64 * 64 : 0;
  }
  std::int64_t count(std::int64_t part) const { return std::min(numbers, tensor.numel() - part * numbers); }
  void load(std::int64_t part, void* to) const {
    if (!converted || written) return;
    convert(tensor.dtype(), at(part), dtype, to, count(part));
    if (tf32) cpu::round_tf32(static_cast<float*>(to), count(part));
  }
  void store(std::int64_t part, const void* from, CastCounts* counts) const {
    if (converted && written) convert(dtype, from, tensor.dtype(), at(part), count(part), counts);
  }
};

// Runs the batch in parts of `size` images, each on one thread. The weight gradients of the parts are added in order.
bool run_parts(const Convolution& whole, std::int64_t size, const Tensor& x, void* w, const Tensor& y,
               const float* bias) {
  const std::int64_t images = whole.x[0];
  const std::int64_t parts = (images + size - 1) / size;
  const bool sums = whole.makes(OpId::conv2d_backward_weight) && parts > 1;
  const std::int64_t n = numel(whole.w);
  const Scratch partial(sums ? static_cast<std::size_t>(parts * n) * sizeof(float) : 1);
  const auto cut = [&](std::int64_t i) {
    Convolution part = whole;
    part.x[0] = std::min(size, images - i * size);
    part.y[0] = part.x[0];
    if (sums) part.out = DType::f32;
    return part;
  };
  {
    const Team one(1);
    if (!primitive_of(cut(0)) || !primitive_of(cut(parts - 1))) return false;
  }
  const ConvertedImages xs{x, whole.x_dtype(), size * (numel(whole.x) / images),
                           whole.makes(OpId::conv2d_backward_input)};
  const ConvertedImages ys{y, whole.y_dtype(), size * (numel(whole.y) / images), whole.makes(OpId::conv2d)};
  const auto step = [](const ConvertedImages& of) { return of.converted ? Primitive::kAnew : of.step(); };
  const std::int64_t steps[] = {step(xs), sums ? n * 4 : 0, step(ys), 0};
  const auto task = [&](std::int64_t i, std::int64_t end, CastCounts* counts) {
    const Team one(1);
    Primitive* const primitive = primitive_of(cut(i));
    if (!primitive) throw_error("internal: oneDNN convolves one part of a batch and not another");
    const Scratch memory(static_cast<std::size_t>(xs.scratch() + ys.scratch()) + 1);
    char* const x_at = xs.converted ? memory.as<char>() : xs.at(i);
    char* const y_at = ys.converted ? memory.as<char>() + xs.scratch() : ys.at(i);
    const void* const data[] = {x_at, static_cast<char*>(sums ? partial.data() : w) + i * steps[1], y_at, bias};
    primitive->run(
        {data, whole.bias ? 4u : 3u}, steps, end - i,
        [&](std::int64_t part) {
          xs.load(i + part, x_at);
          ys.load(i + part, y_at);
        },
        [&](std::int64_t part) {
          xs.store(i + part, x_at, counts);
          ys.store(i + part, y_at, counts);
        });
  };
  // A task takes consecutive parts and reorders the weights once.
  const int threads = num_threads();
  const ConvertedImages& result = xs.written ? xs : ys;
  cpu::parallel_counted(parts, (parts + threads - 1) / threads, result.dtype, result.tensor.dtype(),
                        [&](std::int64_t i, std::int64_t end, CastCounts* counts) {
                          const bool rest = end == parts && images % size != 0;  // the last part is smaller
                          if (end - rest > i) task(i, end - rest, counts);
                          if (rest) task(parts - 1, parts, counts);
                        });
  if (!sums) return true;
  parallel_for(n, std::max<std::int64_t>(1, cpu::kGrain / parts), [&](std::int64_t i, std::int64_t end) {
    float* const sum = partial.as<float>();
    for (std::int64_t part = 1; part < parts; ++part)
      for (std::int64_t k = i; k < end; ++k) sum[k] += sum[part * n + k];
  });
  cast_and_store(whole.out, partial.as<float>(), w, 1, n, nullptr);
  return true;
}

// The operand in `dtype`: row-major, or channels-last if it is so already and `last_is_taken`.
Tensor operand(const Tensor& t, DType dtype, bool last_is_taken) {
  const bool tf32 = cpu::rounds_to_tf32(t.dtype());
  if (t.dtype() == dtype && !tf32 && (t.is_contiguous() || (last_is_taken && is_channels_last(t)))) return t;
  Tensor copy = cpu::copied(t, dtype);
  if (tf32) cpu::round_tf32(copy.data<float>(), copy.numel());
  return copy;
}

bool convolution(const OpCall& call, Outputs& out) {
  Tensor& result = out[0];
  if (result.dtype() == DType::f64 || current_accumulator() || result.numel() == 0 || call[0].numel() == 0)
    return false;
  Convolution c{call.op, call.get<ConvAttrs>(), {}, {}, {}, product_dtype(call[0].dtype()), result.dtype()};
  const bool plain =
      c.out == DType::f32 || (c.out == DType::bf16 && c.in == DType::bf16 && !cpu::counts_for(DType::f32, c.out));
  if (!plain) c.out = DType::f32;
  const bool of_weights = c.makes(OpId::conv2d_backward_weight);
  // Contiguous images are converted later: a part at a time if the batch is cut.
  const auto prepared = [&](const Tensor& t, bool images) {
    return images && t.is_contiguous() ? t : operand(t, c.in, images);
  };
  Tensor first = prepared(call[0], true);
  Tensor second = prepared(call[1], of_weights);
  const cpu::Loaded<float> bias(c.makes(OpId::conv2d) ? call[2] : Tensor(), cpu::Loaded<float>::As::rows);
  c.bias = bias.data() != nullptr;
  const Tensor& x = c.makes(OpId::conv2d) ? first : of_weights ? second : result;
  const Tensor& w = of_weights ? result : second;
  const Tensor& y = c.makes(OpId::conv2d) ? result : first;
  c.x = x.sizes();
  c.w = w.sizes();
  c.y = y.sizes();
  c.x_last = is_channels_last(x);
  c.y_last = is_channels_last(y);
  const std::int64_t size = part_of(c);
  // oneDNN's own threads wait for each other, which is slow on a busy machine. They serve batches of too few images
  // only.
  const bool few = 2 * c.x[0] <= num_threads();
  const bool in_parts = deterministic() || (size < c.x[0] && !few);
  if (!in_parts) {
    if (first.is_same(call[0])) first = operand(first, c.in, true);
    if (second.is_same(call[1])) second = operand(second, c.in, of_weights);
    c.threads = few && c.work() >= 2 * cpu::kWorthThreads ? num_threads() : 1;
  }
  const auto go = [&](void* to) {
    const auto data = [&](const Tensor& t) { return &t == &result ? to : const_cast<void*>(t.raw()); };
    if (in_parts) return run_parts(c, size, x, data(w), y, bias.data());
    return run(c, data(x), data(w), data(y), bias.data());
  };
  if (plain || (in_parts && !of_weights)) return go(result.raw());
  const cpu::Result<float> sums(result);
  if (!go(sums.data())) return false;
  sums.store();
  return true;
}

}  // namespace

void register_convolutions() {
  for (const OpId op : {OpId::conv2d, OpId::conv2d_backward_input, OpId::conv2d_backward_weight})
    set_offer(op, convolution);
}

}  // namespace gradual::onednn
