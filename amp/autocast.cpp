#include "autocast.h"

#include <exception>

#include <algorithm>
#include <mutex>
#include <tuple>

#include "../autograd/function.h"
#include "../autograd/grad_mode.h"
#include "../core/ops/operand_policy.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "outside_amp.h"
#include "rewrite.h"

namespace gradual::amp {
namespace {

// The cache of cast weights. It holds detached values: a cached copy with a history would have no gradient if the first
// use ran under NoGrad. The key includes storage and version, so an edited weight is cast again.
struct CastCache {
  // The kept copy, or a new one.
  Tensor cast(const Tensor& t, DType to, SourceLocation where) {
    const Key key{storage_id(t), t.version(), t.offset(), t.sizes(), t.strides(), t.dtype(), to};
    std::unique_lock lock(mutex_);
    const auto found = std::ranges::find(entries_, key, &Entry::first);
    if (found != entries_.end()) return found->second;
    lock.unlock();
    const NoGrad off;
    const CategoryScope category(Category::casts);
    Tensor buffer = gradual::cast(t, to, where);
    lock.lock();
    if (closed_) return buffer;
    // Older versions of the storage are no longer needed.
    std::erase_if(entries_, [&](const Entry& e) {
      return std::get<0>(e.first) == std::get<0>(key) && std::get<1>(e.first) != std::get<1>(key);
    });
    entries_.emplace_back(key, buffer);
    return buffer;
  }

  // The outermost region has ended; a snapshot that still holds it casts again.
  void close() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
    closed_ = true;
  }

  // Storage, version, view and dtypes.
  using Key = std::tuple<std::uint64_t, std::uint32_t, std::int64_t, Shape, Shape, DType, DType>;
  using Entry = std::pair<Key, Tensor>;

  std::mutex mutex_;  // a snapshot may share the region with other threads
  std::vector<Entry> entries_;
  bool closed_ = false;
};

// The cast weight. On the tape it is a cast whose values come from the cache; its gradient is cast back.
Tensor cast_leaf(CastCache& cache, const Tensor& leaf, DType dtype, SourceLocation where) {
  Tensor y = detached(cache.cast(leaf, dtype, where));
  if (!grad_enabled()) return y;
  const Attrs attrs = dtype;
  const Ref<Node> node = make_node({OpId::cast, {&leaf}, &attrs, where});
  node->output_sizes = y.sizes();
  node->output_dtype = dtype;
  set_history(y, node, 0);
  return y;
}

DType half_of(Device device) { return columns().half[static_cast<int>(device.type)]; }

// Attention's mask, the fourth input, keeps its dtype, because half dtypes would lose large negative numbers.
int castable_inputs(const OpCall& call) {
  return call.op == OpId::scaled_dot_product_attention ? 3 : call.inputs.size();
}

}  // namespace

struct Region final : Interceptor, OperandPolicy, std::enable_shared_from_this<Region> {
  Region(const AutocastOptions& o, Interceptor* around) : options(o), outer(around ? around->share() : nullptr) {
    if (!options.dtype && options.device) options.dtype = half_of(*options.device);
    if (options.dtype && !is_half(*options.dtype))
      throwf("Autocast: casts to f16 or bf16, not to {}; {{.enabled = false}} computes in f32",
             to_string(*options.dtype));
    cache = parent() ? parent()->cache : std::make_shared<CastCache>();
  }
  const Region* parent() const { return dynamic_cast<const Region*>(outer.get()); }  // null: it is the outermost one

  std::shared_ptr<Interceptor> share() override { return shared_from_this(); }

  Outputs call(const OpCall& call) override {
    const Device on = device_of(call);
    if (!covers(on)) return outer ? outer->call(call) : next_below_amp(call);
    if (!options.enabled) return next_below_amp(call);
    const CastPolicy& policy = options.table[call.op];
    if (const Fusion* fusion = fusion_of(call); fusion && !options.table.runs_whole(*fusion))
      return run_parts(*fusion, call, [this](const OpCall& part) { return this->call(part); });
    if (call.op == OpId::custom) {
      const Function& function = *call.get<CustomAttrs>().function;
      const std::optional<DType> dtype = function.amp_dtype();
      return dtype ? call_in(*dtype, fmt::format("{} asks for {}", function.name(), to_string(*dtype)), call)
                   : next_below_amp(call);
    }
    OperandDTypes operands;
    for (int i = 0; i < castable_inputs(call); ++i)
      if (call[i].defined()) operands.add(call[i].dtype());
    if (!operands.any) return next_below_amp(call);
    DType dtype = policy.dtype;
    switch (policy.kind) {
      case PolicyKind::pass: return next_below_amp(call);
      case PolicyKind::rewrite:
        if (op_info(call.op).kind == OpKind::Composite) return (*policy.function)(call);
        return run_rewritten(policy, call);
      case PolicyKind::banned: throw_error(describe(call) + ": " + policy.text);
      case PolicyKind::lower:
        if (operands.f64)
          throwf(
              "{}: under autocast to {} an f64 tensor keeps its dtype and cannot meet the others; cast it with "
              "to(DType::f32), or all to f64",
              describe(call), to_string(dtype_on(on)));
        dtype = dtype_on(on);
        break;
      case PolicyKind::promote:
        if (reads_mixed(call)) return next_below_amp(call);
        dtype = operands.widest;
        break;
      case PolicyKind::fp32:
        if (const auto widened = capability(call.op, on).widened)
          if (const auto attrs = widened(call)) return next_below_amp({call.op, call.inputs, &*attrs, call.where});
        break;
      default: break;  // cast: the entry's own
    }
    return call_in(dtype, fmt::format("{} is {}", to_string(call.op), to_string(policy)), call);
  }
  DType operand_dtype(OpId like, const Tensor& x) const override {
    if (!covers(x.device())) return parent() ? parent()->operand_dtype(like, x) : x.dtype();
    if (!options.enabled || !castable(x.dtype())) return x.dtype();
    const CastPolicy& policy = options.table[like];
    switch (policy.kind) {
      case PolicyKind::lower: return dtype_on(x.device());
      case PolicyKind::fp32: return DType::f32;
      case PolicyKind::cast: return policy.dtype;
      case PolicyKind::banned: throwf("{}: {}", to_string(like), policy.text);
      default: return x.dtype();
    }
  }
  bool covers(Device device) const { return !options.device || options.device->type == device.type; }
  DType dtype_on(Device device) const { return options.dtype.value_or(half_of(device)); }

  AutocastOptions options;
  std::shared_ptr<Interceptor> outer;
  std::shared_ptr<CastCache> cache;
  std::shared_ptr<OutsideAmp> outside;  // what is installed over it, if anything

  Outputs call_in(DType dtype, const std::string& cause, const OpCall& call) const {
    const auto n = static_cast<std::size_t>(call.inputs.size());
    std::vector<const Tensor*> refs(call.inputs.data(), call.inputs.data() + n);
    std::vector<Tensor> casts;
    casts.reserve(n);  // refs point into it
    for (int i = 0; i < castable_inputs(call); ++i) {
      const Tensor& t = call[i];
      if (!t.defined() || t.dtype() == dtype || !castable(t.dtype())) continue;
      const CauseScope scope(CauseKind::autocast, "amp: " + cause);  // a tracer shows it with the cast
      const bool weight = options.cache && t.requires_grad() && t.is_leaf();
      casts.push_back(weight ? cast_leaf(*cache, t, dtype, call.where) : gradual::cast(t, dtype, call.where));
      refs[static_cast<std::size_t>(i)] = &casts.back();
    }
    OpCall below = call;
    below.inputs = TensorRefs(refs.data(), call.inputs.size());
    return next_below_amp(below);
  }
};

DType OutsideAmp::operand_dtype(OpId like, const Tensor& x) const {
  const auto* policy = dynamic_cast<const OperandPolicy*>(amp.get());
  return policy ? policy->operand_dtype(like, x) : x.dtype();
}

const CastPolicy* OutsideAmp::policy_of(OpId op) const {
  const auto* region = dynamic_cast<const Region*>(amp.get());
  return region && region->options.enabled ? &region->options.table[op] : nullptr;
}

namespace {

const OutsideAmp* outside_amp() { return dynamic_cast<const OutsideAmp*>(chain().amp); }

Interceptor* innermost_amp() {
  const OutsideAmp* outside = outside_amp();
  return outside ? outside->amp.get() : chain().amp;
}

// The stage to install for a region: that of what lies outside, which the region keeps until its Autocast ends.
Interceptor* installed_over(const std::shared_ptr<Region>& region) {
  if (!outside_amp()) return region.get();
  region->outside = outside_amp()->over(region);
  return region->outside.get();
}

}  // namespace

Autocast::Autocast(const AutocastOptions& options)
    : region_(std::make_shared<Region>(options, innermost_amp())),
      exceptions_(std::uncaught_exceptions()),
      stage_(chain().amp, installed_over(region_)) {}

Autocast::~Autocast() {
  const std::shared_ptr<OutsideAmp> installed = std::move(region_->outside);  // it holds the region
  if (region_->parent()) return;
  region_->cache->close();
  if (region_->options.at_end && std::uncaught_exceptions() == exceptions_) region_->options.at_end();
}

const AutocastOptions* current_autocast() {
  const auto* region = dynamic_cast<const Region*>(innermost_amp());
  return region ? &region->options : nullptr;
}

std::optional<DType> autocast_dtype(Device device) {
  const auto* region = dynamic_cast<const Region*>(innermost_amp());
  while (region && !region->covers(device)) region = region->parent();
  return region && region->options.enabled ? std::optional(region->dtype_on(device)) : std::nullopt;
}

}  // namespace gradual::amp
