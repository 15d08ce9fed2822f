#include "autocast.h"

#include <mutex>
#include <string>
#include <unordered_map>

#include "../autograd/function.h"
#include "../autograd/grad_meta.h"
#include "../autograd/grad_mode.h"
#include "../core/memory.h"
#include "../core/ops.h"
#include "rewrite.h"

namespace gradual::amp {
namespace {

// The lowered copies of weights. Only the numbers are kept, outside the graph: a copy with a history would lose its
// gradient where the first use ran under NoGrad. Found by storage and version, so an edited weight is cast again.
class CastCache {
 public:
  Tensor find(const Tensor& t, DType dtype) {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = entries_.equal_range(t.unsafe_impl()->storage->id);
    for (auto e = first; e != last; ++e)
      if (e->second.matches(t, dtype)) return e->second.buffer;
    return {};
  }

  void keep(const Tensor& t, const Tensor& buffer) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    const std::uint64_t id = t.unsafe_impl()->storage->id;
    const std::uint32_t version = t.version();
    std::erase_if(entries_, [&](const auto& e) { return e.first == id && e.second.version != version; });
    entries_.emplace(id, Entry{version, t.dtype(), t.offset(), t.sizes(), t.strides(), buffer});
  }

  // The outermost region has ended; who still holds it (a snapshot) casts afresh.
  void close() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
    closed_ = true;
  }

 private:
  struct Entry {
    std::uint32_t version;
    DType from;
    std::int64_t offset;
    Shape sizes, strides;
    Tensor buffer;
    bool matches(const Tensor& t, DType to) const {
      return version == t.version() && from == t.dtype() && to == buffer.dtype() && offset == t.offset() &&
             sizes == t.sizes() && strides == t.strides();
    }
  };

  std::mutex mutex_;  // a snapshot may take the region to other threads
  std::unordered_multimap<std::uint64_t, Entry> entries_;
  bool closed_ = false;
};

// "amp: matmul is lower": what a tracer shows beside a cast.
const char* cause_of(OpId op, const CastPolicy& policy) {
  const auto text = [](OpId o, const CastPolicy& p) {
    return intern("amp: " + std::string(name(o)) + " is " + to_string(p));
  };
  static const auto table = [&] {
    std::vector<const char*> all;
    for (const CastPolicy& p : {CastPolicy::lower(), CastPolicy::fp32(), CastPolicy::promote()})
      for (int i = 0; i < kOpCount; ++i) all.push_back(text(static_cast<OpId>(i), p));
    return all;
  }();
  if (policy.kind > PolicyKind::promote || policy.kind == PolicyKind::pass) return text(op, policy);
  const int row = static_cast<int>(policy.kind) - static_cast<int>(PolicyKind::lower);
  return table[static_cast<std::size_t>(row * kOpCount + static_cast<int>(op))];
}

// Puts a cast from `leaf` on the tape whose numbers are already there. Its gradient is the cast back.
Tensor record_cast(const Tensor& leaf, const Tensor& buffer, SourceLocation where) {
  Tensor y = detached(buffer);
  if (!grad_enabled()) return y;
  const auto node = Ref<Node>::adopt(new Node(OpId::cast, 1));
  const Context& c = context();
  node->where = c.line.line() ? c.line : where;
  node->module = c.module;
  node->cause = c.cause;
  node->attrs = CastAttrs{buffer.dtype()};
  node->input(0).present = true;
  node->input(0).sizes = leaf.sizes();
  node->input(0).dtype = leaf.dtype();
  node->input(0).edge = grad_meta(leaf)->edge;
  node->output_sizes = y.sizes();
  node->output_dtype = y.dtype();
  set_history(y, node, 0);
  return y;
}

Tensor cast_leaf(CastCache& cache, const Tensor& leaf, DType dtype, SourceLocation where) {
  Tensor buffer = cache.find(leaf, dtype);
  if (!buffer.defined()) {
    const NoGrad off;
    const CategoryScope category(Category::casts);
    buffer = gradual::cast(leaf, dtype, where);
    cache.keep(leaf, buffer);
  }
  return record_cast(leaf, buffer, where);
}

// Attention's mask, the fourth input, keeps its dtype: large negative numbers in it would not survive.
int castable_inputs(const OpCall& call) {
  return call.op == OpId::scaled_dot_product_attention ? 3 : call.inputs.size();
}

}  // namespace

class Autocast::Region final : public Interceptor, public std::enable_shared_from_this<Region> {
 public:
  Region(const AutocastOptions& o, Interceptor* around) : options(o), outer(around ? around->share() : nullptr) {
    if (!options.dtype) options.dtype = options.device.is_cuda() ? DType::f16 : DType::bf16;
    if (*options.dtype != DType::f16 && *options.dtype != DType::bf16)
      fail("Autocast: casts to f16 or bf16, not to " + std::string(name(*options.dtype)) +
           "; {.enabled = false} computes in f32, and a rewrite in other formats");
    const auto* region = dynamic_cast<const Region*>(outer.get());
    outermost = region == nullptr;
    cache = region ? region->cache : std::make_shared<CastCache>();
  }

  std::shared_ptr<Interceptor> share() override { return shared_from_this(); }
  Outputs call(const OpCall& call) override;

  AutocastOptions options;
  std::shared_ptr<Interceptor> outer;
  std::shared_ptr<CastCache> cache;
  bool outermost;

 private:
  Outputs call_in(DType dtype, const char* cause, const OpCall& call) const;
  Outputs call_custom(const OpCall& call) const;
};

Outputs Autocast::Region::call(const OpCall& call) {
  for (int i = 0; i < call.inputs.size(); ++i) {
    if (!call[i].defined()) continue;
    if (call[i].device().type == options.device.type) break;
    return outer ? outer->call(call) : next_below_amp(call);
  }
  if (!options.enabled) return next_below_amp(call);
  const CastPolicy& policy = options.table[call.op];
  if (policy.kind == PolicyKind::pass) return call.op == OpId::custom ? call_custom(call) : next_below_amp(call);

  bool any = false, f64 = false;
  DType widest = DType::f32;
  for (int i = 0; i < castable_inputs(call); ++i) {
    if (!call[i].defined()) continue;
    const DType d = call[i].dtype();
    f64 = f64 || d == DType::f64;
    if (!castable(d)) continue;
    widest = any ? gradual::promote(widest, d) : d;
    any = true;
  }
  if (policy.kind == PolicyKind::rewrite) return any ? run_rewritten(policy, call) : next_below_amp(call);
  if (!any) return next_below_amp(call);
  DType dtype = policy.dtype;
  switch (policy.kind) {
    case PolicyKind::banned: fail(describe(call) + ": " + policy.text);
    case PolicyKind::lower:
      if (f64)
        fail(describe(call) + ": under autocast to " + std::string(name(*options.dtype)) +
             " an f64 tensor keeps its dtype and cannot meet the others; cast it with to(DType::f32), or all "
             "to f64");
      dtype = *options.dtype;
      break;
    case PolicyKind::fp32: dtype = DType::f32; break;
    case PolicyKind::promote: dtype = widest; break;
    default: break;
  }
  return call_in(dtype, cause_of(call.op, policy), call);
}

Outputs Autocast::Region::call_in(DType dtype, const char* cause, const OpCall& call) const {
  const auto n = static_cast<std::size_t>(call.inputs.size());
  std::vector<const Tensor*> refs(call.inputs.data(), call.inputs.data() + n);
  std::vector<Tensor> casts;
  casts.reserve(n);  // refs point into it
  for (int i = 0; i < castable_inputs(call); ++i) {
    const Tensor& t = call[i];
    if (!t.defined() || t.dtype() == dtype || !castable(t.dtype())) continue;
    const CauseScope scope(cause);
    const bool weight = options.cache && t.requires_grad() && t.is_leaf();
    casts.push_back(weight ? cast_leaf(*cache, t, dtype, call.where) : gradual::cast(t, dtype, call.where));
    refs[static_cast<std::size_t>(i)] = &casts.back();
  }
  OpCall below = call;
  below.inputs = TensorRefs(refs.data(), call.inputs.size());
  return next_below_amp(below);
}

Outputs Autocast::Region::call_custom(const OpCall& call) const {
  const Function& function = *call.get<CustomAttrs>().function;
  const std::optional<DType> dtype = function.amp_dtype();
  if (!dtype) return next_below_amp(call);
  return call_in(*dtype, intern("amp: " + function.name() + " asks for " + std::string(name(*dtype))), call);
}

Autocast::Autocast(const AutocastOptions& options)
    : region_(std::make_shared<Region>(options, chain().amp)), stage_(chain().amp, region_.get()) {}

Autocast::~Autocast() {
  if (region_->outermost) region_->cache->close();
}

const AutocastOptions* current_autocast() {
  const auto* region = dynamic_cast<const Autocast::Region*>(chain().amp);
  return region ? &region->options : nullptr;
}

std::optional<DType> autocast_dtype(Device device) {
  const auto* region = dynamic_cast<const Autocast::Region*>(chain().amp);
  while (region && region->options.device.type != device.type)
    region = dynamic_cast<const Autocast::Region*>(region->outer.get());
  return region && region->options.enabled ? region->options.dtype : std::nullopt;
}

bool is_autocast_enabled(Device device) { return autocast_dtype(device).has_value(); }

}  // namespace gradual::amp
