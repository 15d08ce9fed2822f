// The inference column: from inputs and attributes to the outputs' dtypes and shapes, with every check of a call.
#include "infer.h"

#include <algorithm>

#include "ops.h"

namespace gradual {
namespace infer {

[[noreturn]] void bad(const OpCall& c, const std::string& why) { fail(describe(c) + ": " + why); }

const Tensor& need(const OpCall& c, int i, const char* what) {
  if (i >= c.inputs.size() || !c[i].defined()) bad(c, std::string("needs ") + what);
  return c[i];
}
void need_dims(const OpCall& c, int i, int n) {
  if (need(c, i, "a tensor").ndim() != n)
    bad(c, "input " + std::to_string(i) + " must be " + std::to_string(n) + "-d, given " + to_string(c[i].sizes()));
}
void need_float(const OpCall& c, int i) {
  if (!c[i].is_floating() || is_f8(c[i].dtype())) bad(c, "takes f64, f32, f16 or bf16; cast with to(DType::f32)");
}
void refuse_f8(const OpCall& c, const Tensor& t) {
  if (is_f8(t.dtype()))
    bad(c, "f8 tensors allow cast, copies, views and contractions only; cast to a wider float first");
}
void need_index(const OpCall& c, int i) {
  if (c[i].dtype() != DType::i64) bad(c, "the index must be i64, given " + std::string(name(c[i].dtype())));
}
void need_same_sizes(const OpCall& c, int i, const Shape& sizes, const char* what) {
  if (c[i].defined() && c[i].sizes() != sizes)
    bad(c, std::string(what) + " must be " + to_string(sizes) + ", given " + to_string(c[i].sizes()));
}
void need_norm_parameter(const OpCall& c, int i, DType x) {
  if (c[i].defined() && c[i].dtype() != DType::f32 && c[i].dtype() != x)
    bad(c, "parameters must be f32 or " + std::string(name(x)) + ", given " + std::string(name(c[i].dtype())));
}
// The strides of a dense (gapless) tensor in its own dim order; false where it has gaps or overlaps.
bool dense(const Tensor& t) {
  if (t.is_contiguous()) return true;
  int order[kMaxDims] = {};
  for (int i = 0; i < t.ndim(); ++i) {
    int at = i;
    for (; at > 0 && t.strides()[order[at - 1]] > t.strides()[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  std::int64_t step = 1;
  for (int k = 0; k < t.ndim(); ++k) {
    if (t.sizes()[order[k]] == 1) continue;
    if (t.strides()[order[k]] != step) return false;
    step *= t.sizes()[order[k]];
  }
  return true;
}

void keep_strides(const OpCall& c, OutSpec& out) {
  for (int i = 0; i < c.inputs.size(); ++i) {
    const Tensor& t = c[i];
    if (!t.defined() || t.sizes() != out.sizes) continue;
    if (!t.is_contiguous() && dense(t)) {
      out.strides = t.strides();
      out.has_strides = true;
    }
    return;
  }
}

void same(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->sizes = x.sizes();
  if (!x.is_contiguous()) keep_strides(c, *out);
}

void same_contiguous(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->sizes = x.sizes();
}

}  // namespace infer
namespace {

using namespace infer;

void broadcast(const OpCall& c, OutSpec* out) {
  const OpInfo& row = info(c.op);
  bool first = true;
  bool strided = false;
  for (int i = 0; i < c.inputs.size(); ++i) {
    const Tensor& t = c[i];
    if (!t.defined()) continue;
    if (!(c.op == OpId::where && i == 0)) out->dtype = t.dtype();
    if (row.dtype_rule == DTypeRule::Logical) refuse_f8(c, t);
    out->sizes = first ? t.sizes() : broadcast_shapes(out->sizes, t.sizes(), row.name.data());
    strided = strided || !t.is_contiguous();
    first = false;
  }
  if (first) bad(c, "needs a tensor");
  if (row.dtype_rule == DTypeRule::Compare || row.dtype_rule == DTypeRule::Logical) out->dtype = DType::bool_;
  if (c.op == OpId::div && !is_floating(out->dtype)) bad(c, "divides floats only; cast with to(DType::f32)");
  if (c.op == OpId::pow && !is_floating(out->dtype)) bad(c, "raises floats only; cast with to(DType::f32)");
  if ((c.op == OpId::add || c.op == OpId::sub || c.op == OpId::mul) && out->dtype == DType::bool_)
    bad(c, "takes numbers, not bool; use logical ops or cast with to(DType::i64)");
  if (c.op == OpId::where && c[0].dtype() != DType::bool_) bad(c, "the condition must be bool");
  if (strided) keep_strides(c, *out);
}

void infer_cast(const OpCall& c, OutSpec* out) {
  same(c, out);
  out->dtype = c.get<CastAttrs>().dtype;
}

Shape reduced(const Shape& sizes, std::uint32_t dims, bool keepdim) {
  Shape out;
  for (int i = 0; i < sizes.size(); ++i) {
    if (!(dims >> i & 1)) {
      out.push_back(sizes[i]);
    } else if (keepdim) {
      out.push_back(1);
    }
  }
  return out;
}

void infer_reduce(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const auto& a = c.get<ReduceAttrs>();
  out->sizes = reduced(x.sizes(), a.dims, a.keepdim);
  out->dtype = x.dtype();
  if (c.op == OpId::sum && !x.is_floating()) out->dtype = DType::i64;
  if (c.op == OpId::sum) refuse_f8(c, x);
  if ((c.op == OpId::max || c.op == OpId::min) && x.numel() == 0 && numel(out->sizes) > 0)
    bad(c, "an empty range has no " + std::string(name(c.op)));
}

void infer_arg(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const auto& a = c.get<DimAttrs>();
  out->sizes = x.ndim() ? reduced(x.sizes(), 1u << a.dim, a.keepdim) : x.sizes();
  out->dtype = DType::i64;
  if (x.ndim() && x.sizes()[a.dim] == 0 && numel(out->sizes) > 0) bad(c, "an empty range has no extreme");
  if (is_f8(x.dtype()) || x.dtype() == DType::bool_) bad(c, "takes numbers");
}

void infer_view(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->offset = x.offset();
  out->sizes = c.get<ShapeAttrs>().shape;
  if (!view_strides(x.sizes(), x.strides(), out->sizes, out->strides))
    bad(c, "strides " + to_string(x.strides()) + " cannot be seen as " + to_string(out->sizes) +
               " without a copy; use reshape");
}

void infer_permute(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->offset = x.offset();
  for (std::int64_t d : c.get<ShapeAttrs>().shape) {
    out->sizes.push_back(x.sizes()[static_cast<int>(d)]);
    out->strides.push_back(x.strides()[static_cast<int>(d)]);
  }
}

void infer_expand(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  out->dtype = x.dtype();
  out->offset = x.offset();
  out->sizes = c.get<ShapeAttrs>().shape;
  const int lead = out->sizes.size() - x.ndim();
  for (int i = 0; i < out->sizes.size(); ++i) {
    const bool grown = i < lead || (x.sizes()[i - lead] == 1 && out->sizes[i] != 1);
    out->strides.push_back(grown ? 0 : x.strides()[i - lead]);
  }
}

void infer_slice(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const auto& a = c.get<SliceAttrs>();
  out->dtype = x.dtype();
  out->sizes = x.sizes();
  out->strides = x.strides();
  out->offset = x.offset() + a.start * x.strides()[a.dim];
  out->sizes[a.dim] = (a.stop - a.start + a.step - 1) / a.step;
  out->strides[a.dim] *= a.step;
}

void infer_slice_backward(const OpCall& c, OutSpec* out) {
  need(c, 0, "a gradient");
  const auto& a = c.get<SliceAttrs>();
  out->dtype = c[0].dtype();
  out->sizes = c[0].sizes();
  out->sizes[a.dim] = a.size;
}

void infer_cat(const OpCall& c, OutSpec* out) {
  const int dim = c.get<DimAttrs>().dim;
  const Tensor& first = need(c, 0, "at least one tensor");
  if (first.ndim() == 0) bad(c, "0-d tensors cannot be concatenated; use stack");
  out->dtype = first.dtype();
  out->sizes = first.sizes();
  for (int i = 1; i < c.inputs.size(); ++i) {
    Shape s = need(c, i, "defined tensors").sizes();
    bool fits = s.size() == out->sizes.size();
    for (int d = 0; fits && d < s.size(); ++d) fits = d == dim || s[d] == out->sizes[d];
    if (!fits) bad(c, "all sizes but those of dim " + std::to_string(dim) + " must be equal");
    out->sizes[dim] += s[dim];
  }
}

void infer_gather(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const Tensor& index = need(c, 1, "an index");
  need_index(c, 1);
  const int dim = c.get<IndexAttrs>().dim;
  if (x.ndim() != index.ndim()) bad(c, "x and index must have the same number of dims");
  for (int d = 0; d < x.ndim(); ++d)
    if (d != dim && index.sizes()[d] > x.sizes()[d]) bad(c, "the index is larger than x at dim " + std::to_string(d));
  if (c.op == OpId::scatter_add) {
    const Tensor& src = need(c, 2, "a source");
    refuse_f8(c, x);
    if (src.dtype() != x.dtype()) bad(c, "x and src must have one dtype");
    if (src.ndim() != x.ndim()) bad(c, "src and x must have the same number of dims");
    for (int d = 0; d < x.ndim(); ++d)
      if (index.sizes()[d] > src.sizes()[d]) bad(c, "the index is larger than src at dim " + std::to_string(d));
    out->sizes = x.sizes();
  } else {
    out->sizes = index.sizes();
  }
  out->dtype = x.dtype();
}

void infer_index_select(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  const Tensor& index = need(c, 1, "an index");
  need_index(c, 1);
  need_dims(c, 1, 1);
  if (x.ndim() == 0) bad(c, "a 0-d tensor has no dim to index");
  const auto& a = c.get<IndexAttrs>();
  out->dtype = x.dtype();
  out->sizes = x.sizes();
  if (c.op == OpId::index_add) refuse_f8(c, x);
  if (c.op == OpId::index_add && index.numel() != x.sizes()[a.dim])
    bad(c, "the index must have one entry for each of " + std::to_string(x.sizes()[a.dim]));
  out->sizes[a.dim] = c.op == OpId::index_add ? a.size : index.numel();
}

void infer_pad(const OpCall& c, OutSpec* out) {
  const auto& a = c.get<PadAttrs>();
  out->dtype = c[0].dtype();
  out->sizes = c[0].sizes();
  for (int i = 0; i < out->sizes.size(); ++i) {
    if (a.before[i] < 0 || a.after[i] < 0) bad(c, "padding must not be negative; use narrow to crop");
    out->sizes[i] += a.before[i] + a.after[i];
  }
}

void infer_tril(const OpCall& c, OutSpec* out) {
  if (need(c, 0, "a tensor").ndim() < 2) bad(c, "needs at least two dims");
  same_contiguous(c, out);
}

void infer_one_hot(const OpCall& c, OutSpec* out) {
  need(c, 0, "classes");
  need_index(c, 0);
  if (c.get<OneHotAttrs>().classes < 1) bad(c, "the number of classes must be at least 1");
  out->dtype = DType::i64;
  out->sizes = c[0].sizes();
  out->sizes.push_back(c.get<OneHotAttrs>().classes);
}

void infer_in_place(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0, "a tensor");
  for (int i = 0; i < x.ndim(); ++i)
    if (x.strides()[i] == 0 && x.sizes()[i] > 1) bad(c, "an expanded tensor cannot be written; clone() it first");
  if (c.inputs.size() > 1 && c[1].defined() && info(c.op).inputs == 2 &&
      broadcast_shapes(x.sizes(), c[1].sizes(), name(c.op).data()) != x.sizes())
    bad(c, "the operand is larger than the tensor written");
  if ((c.op == OpId::add_ || c.op == OpId::mul_) && (is_f8(x.dtype()) || x.dtype() == DType::bool_))
    bad(c, "takes f64, f32, f16, bf16 and integers");
  out->dtype = x.dtype();
  out->sizes = x.sizes();
}

// The tensors of a fused update are walked as one: the same shape, row-major.
void infer_update(const OpCall& c, OutSpec* out) {
  infer_in_place(c, out);
  need(c, 1, "a gradient");
  for (int i = 0; i < c.inputs.size(); ++i) {
    if (!c[i].defined()) continue;
    need_float(c, i);
    if (c[i].sizes() != c[0].sizes() || !c[i].is_contiguous())
      bad(c, "input " + std::to_string(i) + " must be contiguous and of the parameter's shape");
  }
}

void infer_unscale(const OpCall& c, OutSpec* out) {
  infer_in_place(c, out);
  need(c, 1, "a gradient");
  need_float(c, 1);
  const std::int64_t slot = c.get<UnscaleAttrs>().slot;
  if (c[0].dtype() != DType::i64 || c[0].ndim() != 1 || slot < 1 || slot >= c[0].numel())
    bad(c, "found must be i64 [n] with a place for slot " + std::to_string(slot));
  if (!c[1].is_contiguous() || (c[2].defined() && (!c[2].is_contiguous() || c[2].sizes() != c[1].sizes())))
    bad(c, "the gradients must be contiguous and of one shape");
  if (c[2].defined()) need_float(c, 2);
}

void infer_custom(const OpCall&, OutSpec*) {}

}  // namespace

void register_inference() {
  InferFn* infer = columns().infer;
  const auto set = [infer](InferFn fn, std::initializer_list<OpId> ops) {
    for (OpId op : ops) infer[static_cast<int>(op)] = fn;
  };
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& row = info(static_cast<OpId>(i));
    if ((row.kind == OpKind::Elementwise || row.kind == OpKind::Transcendental) && row.inputs == 1) infer[i] = same;
    if ((row.kind == OpKind::Elementwise || row.kind == OpKind::Transcendental) && row.inputs > 1) infer[i] = broadcast;
    if (row.kind == OpKind::Comparison) infer[i] = broadcast;
    if (row.kind == OpKind::InPlace) infer[i] = infer_in_place;
  }
  set(infer_cast, {OpId::cast});
  set(same, {OpId::to_device, OpId::dropout});
  set(same_contiguous, {OpId::clone});
  set(infer_reduce, {OpId::sum, OpId::mean, OpId::var, OpId::max, OpId::min, OpId::logsumexp, OpId::norm});
  set(infer_arg, {OpId::argmax, OpId::argmin});
  set(infer_view, {OpId::view});
  set(infer_permute, {OpId::permute});
  set(infer_expand, {OpId::expand});
  set(infer_slice, {OpId::slice});
  set(infer_slice_backward, {OpId::slice_backward});
  set(infer_cat, {OpId::cat});
  set(infer_gather, {OpId::gather, OpId::scatter_add});
  set(infer_index_select, {OpId::index_select, OpId::index_add});
  set(infer_pad, {OpId::pad});
  set(infer_tril, {OpId::tril});
  set(infer_one_hot, {OpId::one_hot});
  set(infer_update, {OpId::sgd_step_, OpId::adam_step_});
  set(infer_unscale, {OpId::unscale_});
  set(infer_custom, {OpId::custom});
  infer::register_layers();
}

}  // namespace gradual
