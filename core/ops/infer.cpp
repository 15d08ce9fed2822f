// The inference column: computes the outputs' dtypes and shapes from inputs and attributes, with every check of a call.
#include <algorithm>

#include "../support/throwf.h"
#include "infer.h"
#include "parameter_inputs.h"

namespace gradual::inference {

const Tensor& need(const OpCall& c, int i, const char* what, Kind kind, int dims) {
  if (i >= c.inputs.size() || !c[i].defined()) throwf(c, "needs {}", what);
  const Tensor& t = c[i];
  if (kind == Kind::real && (!t.is_floating() || is_f8(t.dtype())))
    throw_error(c, "takes f64, f32, f16 or bf16; cast with to(DType::f32)");
  if (kind == Kind::index && t.dtype() != DType::i64) throwf(c, "{} must be i64, given {}", what, to_string(t.dtype()));
  if (dims >= 0 && t.dim() != dims) throwf(c, "input {} must be {}-d, given {}", i, dims, to_string(t.sizes()));
  return t;
}

void need_same_sizes(const OpCall& c, int i, const Shape& sizes, const char* what) {
  if (c[i].defined() && c[i].sizes() != sizes)
    throwf(c, "{} must be {}, given {}", what, to_string(sizes), to_string(c[i].sizes()));
}

void same_contiguous(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  out->dtype = x.dtype();
  out->sizes = x.sizes();
}

void keep_strides(const Tensor& t, OutSpec& out) {
  if (t.is_contiguous() || !is_dense(t.sizes(), t.strides())) return;
  out.strides = t.strides();
  out.has_strides = true;
}

Shape reduced(const Shape& sizes, std::uint32_t dims, bool keepdim) {
  Shape out;
  for (int i = 0; i < sizes.size(); ++i)
    if (const bool gone = dims >> i & 1; !gone || keepdim) out.push_back(gone ? 1 : sizes[i]);
  return out;
}

static void refuse_f8(const OpCall& c, const Tensor& t) {
  if (is_f8(t.dtype()))
    throw_error(c, "f8 tensors allow cast, copies, views and contractions only; cast to a wider float first");
}

static bool is_channels_last(const Tensor& t) { return gradual::is_channels_last(t.sizes(), t.strides()); }

// The output has dtype, sizes and stride order of input 0.
void infer_same(const OpCall& c, OutSpec* out) {
  same_contiguous(c, out);
  keep_strides(c[0], *out);
}

void infer_cast(const OpCall& c, OutSpec* out) {
  infer_same(c, out);
  out->dtype = c.get<DType>();
}

// An op of one input without options. clone gives a row-major tensor, logical_not bool.
void infer_unary(const OpCall& c, OutSpec* out) {
  if (c.op == OpId::clone) return same_contiguous(c, out);
  infer_same(c, out);
  if (c.op != OpId::logical_not) return;
  refuse_f8(c, c[0]);
  out->dtype = DType::bool_;
}

// Inputs: dy and the saved tensor, of the same sizes.
void infer_activation_backward(const OpCall& c, OutSpec* out) {
  infer_same(c, out);
  need_same_sizes(c, 1, need(c, 0).sizes(), "the saved tensor");
  const Tensor& saved = need(c, 1, "the saved tensor", Kind::real);
  if (is_channels_last(saved)) keep_strides(saved, *out);
}

// The common case of arithmetic: row-major floats of one shape and dtype.
static bool broadcast_nothing(const OpCall& c, OutSpec* out) {
  if (c.inputs.size() != 2) return false;
  const Tensor& a = c[0];
  const Tensor& b = c[1];
  if (!a.defined() || !b.defined()) return false;
  if (!is_floating(a.dtype()) || a.dtype() != b.dtype() || a.sizes() != b.sizes() || !a.is_contiguous() ||
      !b.is_contiguous())
    return false;
  out->dtype = a.dtype();
  out->sizes = a.sizes();
  return true;
}

// Ops of numbers that a bool has no meaning for.
static bool counts_numbers(OpId op) {
  constexpr OpId kOps[] = {OpId::add,       OpId::sub,  OpId::mul,        OpId::floor_divide, OpId::trunc_divide,
                           OpId::remainder, OpId::fmod, OpId::shift_left, OpId::shift_right};
  return std::ranges::find(kOps, op) != std::end(kOps);
}

void infer_broadcast(const OpCall& c, OutSpec* out) {
  const OpInfo& row = op_info(c.op);
  if ((row.dtype_rule == DTypeRule::Promote || row.dtype_rule == DTypeRule::Float) && broadcast_nothing(c, out)) return;
  bool first = true;
  bool typed = false;
  bool strided = false;
  for (int i = 0; i < c.inputs.size(); ++i) {
    const Tensor& t = c[i];
    if (!t.defined()) continue;
    if (!(c.op == OpId::where && i == 0)) {
      const bool mixed = typed && row.dtype_rule == DTypeRule::Promote;  // reads_mixed()
      out->dtype = mixed ? promote(out->dtype, t.dtype()) : t.dtype();
      typed = true;
    }
    if (row.dtype_rule == DTypeRule::Logical) refuse_f8(c, t);
    if (row.dtype_rule == DTypeRule::Integer && is_floating(t.dtype())) throw_error(c, "takes integers and bool only");
    if (first) out->sizes = t.sizes();
    else if (t.sizes() != out->sizes) out->sizes = broadcast_shapes(out->sizes, t.sizes(), row.name.data());
    strided = strided || !t.is_contiguous();
    first = false;
  }
  if (first) throw_error(c, "needs a tensor");
  if (row.dtype_rule == DTypeRule::Compare || row.dtype_rule == DTypeRule::Logical) out->dtype = DType::bool_;
  if (c.op == OpId::pow && !is_floating(out->dtype)) throw_error(c, "takes floats only; cast with to(DType::f32)");
  if (counts_numbers(c.op) && out->dtype == DType::bool_)
    throw_error(c, "takes numbers, not bool; use logical ops or cast with to(DType::i64)");
  if (c.op == OpId::where && c[0].dtype() != DType::bool_) throw_error(c, "the condition must be bool");
  const Tensor* decides = nullptr;  // a channels-last image, or else the first input of full size
  for (int i = 0; strided && i < c.inputs.size(); ++i) {
    if (!c[i].defined() || c[i].sizes() != out->sizes) continue;
    if (!decides || (is_channels_last(c[i]) && !is_channels_last(*decides))) decides = &c[i];
  }
  if (decides) keep_strides(*decides, *out);
}

static void need_extreme(const OpCall& c, const OutSpec& out) {
  if (c[0].numel() == 0 && numel(out.sizes) > 0) throw_error(c, "an empty range has no extreme");
}

void infer_reduce(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  const auto& a = c.get<ReduceAttrs>();
  *out = {x.dtype(), reduced(x.sizes(), a.dims, a.keepdim)};
  if (c.op == OpId::sum && !x.is_floating()) out->dtype = DType::i64;
  if (c.op == OpId::sum) refuse_f8(c, x);
  if (c.op == OpId::max || c.op == OpId::min) need_extreme(c, *out);
}

void infer_arg(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  const auto& a = c.get<DimAttrs>();
  *out = {DType::i64, reduced(x.sizes(), 1u << a.dim, a.keepdim)};
  need_extreme(c, *out);
  if (is_f8(x.dtype()) || x.dtype() == DType::bool_) throw_error(c, "takes numbers");
}

// The start of every view: the layout of input 0.
static const Tensor& start_view(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  *out = {x.dtype(), x.sizes(), x.strides(), false, x.offset()};
  return x;
}

void infer_view(const OpCall& c, OutSpec* out) {
  const Tensor& x = start_view(c, out);
  out->sizes = c.get<Shape>();
  if (!view_strides(x.sizes(), x.strides(), out->sizes, out->strides))
    throwf(c, "strides {} cannot be seen as {} without a copy; use reshape", to_string(x.strides()),
           to_string(out->sizes));
}

void infer_permute(const OpCall& c, OutSpec* out) {
  const Tensor& x = start_view(c, out);
  const Shape& dims = c.get<Shape>();
  for (int i = 0; i < dims.size(); ++i) {
    out->sizes[i] = x.sizes()[static_cast<int>(dims[i])];
    out->strides[i] = x.strides()[static_cast<int>(dims[i])];
  }
}

void infer_expand(const OpCall& c, OutSpec* out) {
  const Tensor& x = start_view(c, out);
  out->sizes = c.get<Shape>();
  out->strides = Shape::filled(out->sizes.size(), 0);
  const int lead = out->sizes.size() - x.dim();
  for (int i = lead; i < out->sizes.size(); ++i)
    if (x.sizes()[i - lead] == out->sizes[i]) out->strides[i] = x.strides()[i - lead];
}

void infer_slice(const OpCall& c, OutSpec* out) {
  const Tensor& x = start_view(c, out);
  const auto& a = c.get<SliceAttrs>();
  out->offset += a.start * x.strides()[a.dim];
  out->sizes[a.dim] = (a.stop - a.start + a.step - 1) / a.step;
  out->strides[a.dim] *= a.step;
}

void infer_slice_backward(const OpCall& c, OutSpec* out) {
  same_contiguous(c, out);
  out->sizes[c.get<SliceAttrs>().dim] = c.get<SliceAttrs>().size;
}

void infer_cat(const OpCall& c, OutSpec* out) {
  const int dim = c.get<DimAttrs>().dim;
  const Tensor& first = need(c, 0, "at least one tensor");
  if (first.dim() == 0) throw_error(c, "0-d tensors cannot be concatenated; use stack");
  same_contiguous(c, out);
  for (int i = 1; i < c.inputs.size(); ++i) {
    Shape rest = need(c, i, "defined tensors").sizes();
    const std::int64_t size = rest.size() == first.dim() ? rest[dim] : 0;
    if (rest.size() == first.dim()) rest[dim] = first.sizes()[dim];
    if (rest != first.sizes()) throwf(c, "all sizes but those of dim {} must be equal", dim);
    out->sizes[dim] += size;
  }
}

// Dims of the index, except `dim` (-1: no exception), must not be larger than those of t.
static void need_cover(const OpCall& c, const Tensor& t, const char* what, int dim) {
  const Shape& index = c[1].sizes();
  if (t.dim() != index.size()) throwf(c, "{} and index must have the same number of dims", what);
  for (int d = 0; d < t.dim(); ++d)
    if (d != dim && index[d] > t.sizes()[d]) throwf(c, "the index is larger than {} at dim {}", what, d);
}

void infer_gather(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  const Tensor& index = need(c, 1, "an index", Kind::index);
  need_cover(c, x, "x", c.get<IndexAttrs>().dim);
  *out = {x.dtype(), index.sizes()};
  if (c.op == OpId::gather) return;
  const Tensor& src = need(c, 2, "a source");
  refuse_f8(c, x);
  if (src.dtype() != x.dtype()) throw_error(c, "x and src must have one dtype");
  need_cover(c, src, "src", -1);
  out->sizes = x.sizes();
}

void infer_index_select(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  const Tensor& index = need(c, 1, "an index", Kind::index, 1);
  if (x.dim() == 0) throw_error(c, "a 0-d tensor has no dim to index");
  const auto& a = c.get<IndexAttrs>();
  same_contiguous(c, out);
  out->sizes[a.dim] = c.op == OpId::index_add ? a.size : index.numel();
  if (c.op == OpId::index_select) return;
  refuse_f8(c, x);
  need_same_sizes(c, 1, {x.sizes()[a.dim]}, "the index");
}

void infer_tril(const OpCall& c, OutSpec* out) {
  if (need(c, 0).dim() < 2) throw_error(c, "needs at least two dims");
  same_contiguous(c, out);
}
void infer_pad(const OpCall& c, OutSpec* out) {
  const auto& a = c.get<PadAttrs>();
  same_contiguous(c, out);
  for (int i = 0; i < out->sizes.size(); ++i) {
    if (std::min(a.before[i], a.after[i]) < 0 || std::max(a.before[i], a.after[i]) > kMostExtent)
      throwf(c, "padding must not be negative; use narrow to crop (and at most {})", kMostExtent);
    out->sizes[i] += a.before[i] + a.after[i];
  }
}

void infer_one_hot(const OpCall& c, OutSpec* out) {
  need(c, 0, "the index", Kind::index);
  if (c.get<std::int64_t>() < 1) throw_error(c, "the number of classes must be at least 1");
  same_contiguous(c, out);
  out->sizes.push_back(c.get<std::int64_t>());
}

static void refuse_expanded(const OpCall& c, const Tensor& x) {
  if (x.numel() == 0) return;  // row-major strides are 0 then too
  for (int i = 0; i < x.dim(); ++i)
    if (x.strides()[i] == 0 && x.sizes()[i] > 1) throwf(c, "an expanded tensor cannot be written; clone() it first");
}

void infer_in_place(const OpCall& c, OutSpec* out) {
  const Tensor& x = need(c, 0);
  refuse_expanded(c, x);
  if (op_info(c.op).inputs == 2 && c[1].defined() &&
      broadcast_shapes(x.sizes(), c[1].sizes(), to_string(c.op).data()) != x.sizes())
    throw_error(c, "the operand is larger than the tensor written");
  if ((c.op == OpId::add_ || c.op == OpId::mul_) && (is_f8(x.dtype()) || x.dtype() == DType::bool_))
    throw_error(c, "takes f64, f32, f16, bf16 and integers");
  if (c.op == OpId::fill_) check_holds(x.dtype(), c.get<ScalarAttrs>().value, "fill_");
  same_contiguous(c, out);
}

void infer_batch_norm_update(const OpCall& c, OutSpec* out) {
  static constexpr const char* kNames[] = {"a running mean", "a running var", "", "the mean", "invstd"};
  if (need(c, 2, "a count of batches", Kind::index).numel() != 1)
    throwf(c, "a count of batches is one number, given {}", describe(c[2]));
  for (const int i : {0, 1, 3, 4}) {
    need(c, i, kNames[i], Kind::real, 1);
    need_same_sizes(c, i, c[0].sizes(), kNames[i]);
    const DType wanted = c[i < 2 ? 0 : 3].dtype();
    if (c[i].dtype() != wanted)
      throwf(c, "{} must be {}, given {}", kNames[i], to_string(wanted), to_string(c[i].dtype()));
  }
  if (c[3].dtype() != DType::f32 && c[3].dtype() != DType::f64)
    throwf(c, "a batch's statistics are f32 or f64, given {}", to_string(c[3].dtype()));
  refuse_expanded(c, c[1]);
  const auto& a = c.get<RunningAttrs>();
  if (a.count < 2) throw_error(c, "an unbiased variance needs more than one value per channel");
  if (!(a.momentum >= 0 && a.momentum <= 1)) throwf(c, "the momentum is {}; it must be 0 to 1", a.momentum);
  infer_in_place(c, out);
}

// All tensors of a parameter have one shape and are row-major. unscale_ has its counts before them.
void infer_update(const OpCall& c, OutSpec* out) {
  infer_in_place(c, out);
  const auto [count, first, each, written] = parameter_inputs(c);
  const int n = c.inputs.size() - first;
  if (n < each || n % each != 0) throwf(c, "takes {} tensors for each parameter, given {}", each, n);
  for (int part = first; part < c.inputs.size(); part += each) {
    const Shape& sizes = need(c, part).sizes();
    if (first == 0) need(c, part + 1, "a gradient");
    for (int i = part; i < part + each; ++i) {
      if (!c[i].defined()) continue;
      need(c, i, "a tensor", Kind::real);
      need_same_sizes(c, i, sizes, "every tensor");
      if (!c[i].is_contiguous()) throwf(c, "input {} must be contiguous", i);
    }
  }
  if (first == 0) return;
  const std::int64_t slot = c.get<UnscaleAttrs>().slot;
  if (c[0].dtype() != DType::i64 || c[0].dim() != 1 || slot < 1 || slot + count > c[0].numel())
    throwf(c, "found must be i64 [n] with a place for each gradient from {} on", slot);
}

// A user's function and a leaf have no outputs to describe.
void infer_custom(const OpCall&, OutSpec*) {}

}  // namespace gradual::inference

void gradual::register_inference() {
#define GRADUAL_OP(name, inputs, outputs, kind, rule, function) \
  if constexpr (OpKind::kind != OpKind::Composite)              \
    columns().infer[static_cast<int>(OpId::name)] = inference::infer_##function;
#include "../ops.def"
}
