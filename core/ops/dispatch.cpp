#include "dispatch.h"

#include <algorithm>

#include "../support/throwf.h"
#include "cpu_backend.h"
#include "ops.h"

namespace gradual {

Columns& columns() {
  static Columns all;
  return all;
}

void ensure_registered() { [[maybe_unused]] static const bool done = (register_columns(), true); }

Chain& chain() {
  [[gnu::tls_model("initial-exec")]] thread_local Chain current{nullptr, default_autograd(), nullptr, nullptr};
  return current;
}

ThreadState snapshot() {
  const Chain& c = chain();
  return {c, context(), modes(), default_generator().state(), c.amp ? c.amp->share() : nullptr};
}

const Capability& capability(OpId op, Device device) {
  return (device.is_cuda() ? columns().cuda_capability : columns().cpu_capability)[static_cast<int>(op)];
}

Device device_of(const OpCall& call) {
  for (int i = 0; i < call.inputs.size(); ++i)
    if (call[i].defined()) return call[i].device();
  return Device::cpu();
}

static bool can(const OpCall& call, bool (*Capability::*what)(const OpCall&)) {
  const auto asked = capability(call.op, device_of(call)).*what;
  return asked && asked(call);
}
bool suits(const OpCall& call) { return can(call, &Capability::suits); }
bool reads_mixed(const OpCall& call) { return can(call, &Capability::reads_mixed); }

static Outputs run_typed(const OpCall& call);

namespace {

// --- promotion -------------------------------------------------------------------------------------------------------

// True if all inputs from i on have one floating dtype, which every rule accepts: most calls.
bool plain_floats(const OpCall& call, int i) {
  const TensorImpl* first = nullptr;
  for (; i < call.inputs.size(); ++i) {
    const TensorImpl* t = call[i].unsafe_impl();
    if (!t) continue;
    if (!first) first = t;
    else if (t->dtype != first->dtype) return false;
  }
  return first && is_floating(first->dtype) && !is_f8(first->dtype);
}

// False if the op's dtype rule certainly needs no cast.
bool needs_promotion(const OpCall& call, DTypeRule rule, int first) {
  return rule != DTypeRule::Explicit && rule != DTypeRule::Same && rule != DTypeRule::Logical &&
         !plain_floats(call, first) && !reads_mixed(call);
}

// The common dtype of input i and all inputs after it; none if no input is defined.
std::optional<DType> common_dtype(const OpCall& call, DTypeRule rule, int i) {
  std::optional<DType> common;
  for (; i < call.inputs.size(); ++i) {
    if (!call[i].defined()) continue;
    const DType d = call[i].dtype();
    if (is_f8(d) && op_info(call.op).kind != OpKind::Contraction && call.op != OpId::cat)
      throw_error(call, "f8 tensors allow cast, copies, views and contractions only; cast to a wider float first");
    common = common ? promote(*common, d) : d;
  }
  if (!common || is_floating(*common)) return common;
  if (rule == DTypeRule::Float) return DType::f32;
  if (rule == DTypeRule::FloatOnly) throw_error(call, "takes floating tensors; cast with to(DType::f32)");
  if (rule == DTypeRule::Number && common == DType::bool_)
    throw_error(call, "takes numbers, not bool; cast with to(DType::i64) or to(DType::f32)");
  return common;
}

// "promotion in add", made once for each op.
const CallCause& promotion_cause(OpId op) {
  static std::atomic<const CallCause*> causes[kOpCount] = {};
  std::atomic<const CallCause*>& cause = causes[static_cast<int>(op)];
  if (!cause) cause = &intern_cause(CauseKind::promotion, fmt::format("promotion in {}", to_string(op)));
  return *cause;
}

// Runs the call with inputs from `first` on cast to their common dtype.
[[gnu::noinline]] Outputs run_promoted(const OpCall& call, DTypeRule rule, int first) {
  const std::optional<DType> common = common_dtype(call, rule, first);
  const auto unlike = [&](const Tensor* t) { return t->defined() && t->dtype() != common; };
  const Tensor* const* inputs = call.inputs.data();
  const int n = call.inputs.size();
  if (std::none_of(inputs + first, inputs + n, unlike)) return run_typed(call);
  std::vector<const Tensor*> refs(inputs, inputs + n);
  std::vector<Tensor> casts;
  casts.reserve(refs.size());  // refs point into it
  {
    const CauseScope cause(promotion_cause(call.op));
    for (auto ref = refs.begin() + first; ref != refs.end(); ++ref)
      if (unlike(*ref)) *ref = &casts.emplace_back(cast(**ref, *common, call.where));
  }
  OpCall promoted = call;
  promoted.inputs = TensorRefs(refs.data(), n);
  return run_typed(promoted);
}

// --- observe ---------------------------------------------------------------------------------------------------------

[[gnu::noinline]] Outputs run_observed(const OpCall& call, Chain& c) {
  Interceptor* const observe = c.observe;
  OpCall seen = call;
  // No output reuses an operand's memory, because observers read operands afterwards. The bits are the same.
  seen.inputs = TensorRefs(call.inputs.data(), call.inputs.size());
  if (op_info(call.op).kind == OpKind::Custom) return observe->call(seen);  // the ops inside are observed too
  const StageScope mask(c.observe, nullptr);
  return observe->call(seen);
}

// --- backend ---------------------------------------------------------------------------------------------------------

// The device of all inputs (except for copy_, which copies between devices).
Device common_device(const OpCall& call) {
  const Storage* first = nullptr;
  for (int i = 0; i < call.inputs.size(); ++i) {
    const TensorImpl* t = call[i].unsafe_impl();
    if (!t) continue;
    const Storage* s = t->storage.get();
    if (!first) first = s;
    else if (s->device != first->device && call.op != OpId::copy_)
      throwf(call, "inputs on {} and {}; move them to one device with to(Device)", to_string(first->device),
             to_string(s->device));
  }
  return first ? first->device : Device::cpu();
}

// Asks the fast kernels and oneDNN, as far as the backend allows them. True if one has computed the call.
bool offered(const OpCall& call, Outputs& out) {
  const OfferFn fast = columns().fast[static_cast<int>(call.op)];
  if (fast && cpu_backend() >= CpuBackend::fast && fast(call, out)) return true;
  const OfferFn onednn = columns().onednn[static_cast<int>(call.op)];
  return onednn && cpu_backend() == CpuBackend::onednn && onednn(call, out);
}

// An input whose memory an elementwise output may reuse: the caller gives it up, nothing else shares it, and it has the
// output's shape and dtype. -1 if there is none.
int disposable(const OpCall& call, const OutSpec& out) {
  const OpKind kind = op_info(call.op).kind;
  if (kind != OpKind::Elementwise && kind != OpKind::Transcendental && kind != OpKind::Random) return -1;
  for (int i = 0; i < call.inputs.size(); ++i) {
    const TensorImpl* t = call.inputs.temporary(i) ? call[i].unsafe_impl() : nullptr;
    if (!t || t->refs.load(std::memory_order_acquire) != 1) continue;
    const Storage& s = *t->storage;
    if (s.refs.load(std::memory_order_acquire) != 1 || s.borrowed() || s.category != current_category()) continue;
    if (t->dtype == out.dtype && t->contiguous && !out.has_strides && t->sizes == out.sizes) return i;
  }
  return -1;
}

// A new tensor in the memory of `t`, whose numbers will be overwritten.
Tensor over(const Tensor& t) {
  add_to(t.unsafe_impl()->storage->version, 1);
  return as_strided(t, t.sizes(), t.strides(), t.offset());
}

// Makes the outputs. Returns the input whose memory output 0 reuses, or -1.
inline int allocate(const OpCall& call, Device device, Outputs& out) {
  const OpInfo& row = op_info(call.op);
  int used_up = -1;
  if (row.kind == OpKind::InPlace) out[0] = call[0];
  if (row.kind == OpKind::InPlace || row.kind == OpKind::Custom) return used_up;
  if (call.op == OpId::to_device) device = call.get<Device>();
  for (int i = 0; i < row.outputs; ++i) {
    const OutSpec& s = call.specs[i];
    if (call.inputs.temporaries() != 0) used_up = disposable(call, s);
    out[i] = used_up >= 0 ? over(call[used_up]) : empty(s.sizes, {.dtype = s.dtype, .device = device});
    if (s.has_strides) {
      TensorImpl* t = out[i].unsafe_impl();
      t->strides = s.strides;
      t->contiguous = is_contiguous(s.sizes, s.strides);
    }
  }
  return used_up;
}

}  // namespace

// --- the chain, in the order of a call: amp, promotion, inference, autograd, results, observe, backend ---------------

Outputs dispatch(OpId op, TensorRefs inputs, const Attrs& attrs, SourceLocation where) {
  ensure_registered();
  const SourceLocation line = context().line;
  const OpCall call{op, inputs, &attrs, line.line() ? line : where};
  Chain& c = chain();
  if (Interceptor* amp = c.amp) {
    const StageScope mask(c.amp, nullptr);
    return amp->call(call);
  }
  return next_below_amp(call);
}

// Promotion: casts inputs of different dtypes by the op's dtype rule.
Outputs next_below_amp(const OpCall& call) {
  const DTypeRule rule = op_info(call.op).dtype_rule;
  const int first = call.op == OpId::where ? 1 : 0;
  return needs_promotion(call, rule, first) ? run_promoted(call, rule, first) : run_typed(call);
}

// Inference: shapes, dtypes and checks. A composite op runs its parts here, each as a call of its own. Then autograd.
static Outputs run_typed(const OpCall& call) {
  const OpInfo& row = op_info(call.op);
  if (row.kind == OpKind::Composite) return columns().composite[static_cast<int>(call.op)](call);
  OutSpec specs[kMaxOutputs];
  columns().infer[static_cast<int>(call.op)](call, specs);
  // Field by field: a wide copy of fields that were just written would stall (store forwarding).
  const OpCall typed{
      call.op, {call.inputs.data(), call.inputs.size(), call.inputs.temporaries()}, call.attrs, call.where, specs};
  Chain& c = chain();
  if (Interceptor* autograd = c.autograd) {
    const StageScope mask(c.autograd, nullptr);
    return autograd->call(typed);
  }
  return next_below_autograd(typed);
}

// Results. A function's own ops are rounded too.
[[gnu::noinline]] static Outputs run_rounded(const OpCall& call, Chain& c) {
  Interceptor* const results = c.results;
  const StageScope mask(c.results, op_info(call.op).kind == OpKind::Custom ? results : nullptr);
  return results->call(call);
}
Outputs next_below_autograd(const OpCall& call) {
  Chain& c = chain();
  return c.results ? run_rounded(call, c) : next_below_results(call);
}

// Observe.
Outputs next_below_results(const OpCall& call) {
  Chain& c = chain();
  return c.observe ? run_observed(call, c) : next_below_observe(call);
}

// Backend: allocates the outputs and runs the kernel. A view has no kernel.
Outputs next_below_observe(const OpCall& call) {
  const OpInfo& row = op_info(call.op);
  Outputs out;
  if (row.kind == OpKind::View) {
    out[0] = as_strided(call[0], call.specs[0].sizes, call.specs[0].strides, call.specs[0].offset);
    return out;
  }
  const Device device = common_device(call);
  if (device.is_cuda()) device::select(device);
  const KernelFn kernel = (device.is_cuda() ? columns().cuda : columns().cpu)[static_cast<int>(call.op)];
  if (!kernel) throwf("no {} kernel for {}", to_string(device), to_string(call.op));
  const int used_up = allocate(call, device, out);
  if (device.is_cuda() || !offered(call, out)) kernel(call, out);
  // Drops the temporary now, so that the next op in this expression can reuse its buffer.
  if (used_up >= 0) call.inputs.drop(used_up);
  if (row.kind == OpKind::InPlace) out[0].unsafe_impl()->storage->version.fetch_add(1, std::memory_order_relaxed);
  return out;
}

Tensor dispatch1(OpId op, TensorRefs inputs, const Attrs& attrs, SourceLocation where) {
  return std::move(dispatch(op, inputs, attrs, where)[0]);
}

}  // namespace gradual
