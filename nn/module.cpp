#include "module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_set>

#include "../autograd/grad_mode.h"
#include "../core/support/throwf.h"

namespace gradual::nn {

static std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : name.empty() ? prefix : prefix + "." + name;
}

static std::string listed(const char* title, const std::vector<std::string>& keys) {
  return keys.empty() ? "" : fmt::format("\n  {}: {}", title, fmt::join(keys, ", "));
}

template <class M, class F> void Module::walk(M& root, const F& visit, bool once) {
  std::unordered_set<const Module*> seen;
  const auto step = [&](auto& self, const std::string& path, M& module) -> void {
    if (!seen.insert(&module).second && once) return;
    visit(path, module);
    for (const Child& child : module.children_) self(self, joined(path, child.name), *child.module);
  };
  step(step, "", root);
}

Tensor Module::forward(const Tensor&) {
  throwf("{}: has no forward for one tensor; call its operator(), or override forward(const Tensor&)", kind());
}

Tensor Module::forward_fused(const Operand&, const Fusion& fusion, const Attrs&, const Tensor&) {
  throwf("{}: does not run {}; override forward_fused where ends_in() names an op", kind(), to_string(fusion.whole));
}

Tensor Module::operator()(const Tensor& x, SourceLocation loc) {
  const ModuleCall call(*this, loc);
  return call.leave(x, forward(x));
}

// --- registration ---

void Module::check_name(const std::string& name, const char* what) const {
  const auto refuse = [&](const char* why) { throwf("{}: cannot register {} '{}': {}", kind(), what, name, why); };
  if (name.empty()) refuse("the name is empty");
  if (name.find('.') != std::string::npos) refuse("a name has no dots; they separate the parts of a path");
  const auto taken = [&](const auto& named) { return named->name == name; };
  if (std::ranges::any_of(slots_, taken) || std::ranges::any_of(children_, [&](const Child& c) { return taken(&c); }))
    refuse("the module has something of that name already");
}

Tensor& Module::register_parameter(const std::string& name, const Tensor& value, bool requires_grad) {
  Tensor& slot = add_slot(name, value, Kind::parameter);
  if (!slot.defined()) return slot;
  if (!slot.is_leaf()) throwf("{}: parameter '{}' is the result of an op; detach() it", kind(), name);
  slot.set_category(Category::parameters);
  if (requires_grad && !slot.requires_grad()) slot.set_requires_grad();
  return slot;
}

Tensor& Module::add_slot(const std::string& name, const Tensor& value, Kind kind) {
  check_name(name, kind == Kind::parameter ? "parameter" : "buffer");
  return slots_.emplace_back(std::make_unique<Slot>(Slot{name, value, kind}))->value;
}

void Module::add_child(const std::string& name, const std::shared_ptr<Module>& module) {
  check_name(name, "module");
  if (!module) throwf("{}: cannot register module '{}': the pointer is null", kind(), name);
  for (const auto& below : module->named_modules())
    if (below.second == this) throwf("{}: cannot register module '{}': it would contain itself", kind(), name);
  children_.push_back({name, module});
  for (const auto& [below, m] : module->named_modules()) m->path_ = intern(joined(joined(path_, name), below));
}

// --- listing ---

NamedTensors Module::list(std::initializer_list<Kind> kinds, bool recurse) const {
  NamedTensors all;
  std::unordered_set<const TensorImpl*> seen;
  walk(*this, [&](const std::string& path, const Module& m) {
    if (!recurse && &m != this) return;
    for (const auto& slot : m.slots_)
      if (std::ranges::count(kinds, slot->kind) > 0 && slot->value.defined() &&
          seen.insert(slot->value.unsafe_impl()).second)
        all.emplace_back(joined(path, slot->name), slot->value);
  });
  return all;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> all;
  walk(*this, [&](const std::string& path, Module& m) { all.emplace_back(path, &m); });
  return all;
}

std::string Module::kind() const {
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, nullptr), &std::free);
  // The last part outside of template arguments.
  const std::string text(demangled.get(), std::strcspn(demangled.get(), "<"));
  return text.substr(text.rfind(':') + 1);
}

// --- changing everything at once ---

void Module::train(bool on) {
  walk(*this, [&](const std::string&, Module& m) { m.training_ = on; });
}

template <class F> void Module::convert(const F& converted, const std::function<bool(const Module&)>& which) {
  const NoGrad no_grad;
  const CauseScope cause(causes::conversion);
  walk(*this, [&](const std::string&, Module& m) {
    if (which && !which(m)) return;
    for (const auto& slot : m.slots_) {
      const Tensor& t = slot->value;
      if (!t.defined()) continue;
      const Tensor to = converted(t);
      if (to.is_same(t)) continue;
      if (slot->kind == Kind::parameter) to.set_category(Category::parameters);
      t.swap_data(to);
      if (const Tensor grad = t.grad(); grad.defined()) t.set_grad(converted(grad));
    }
  });
}

void Module::to(DType d, const std::function<bool(const Module&)>& which) {
  if (!is_floating(d) || is_f8(d)) throwf("{}: parameters are f64, f32, f16 or bf16, not {}", kind(), to_string(d));
  convert([&](const Tensor& t) { return t.is_floating() ? t.to(d) : t; }, which);
}

void Module::to(Device device) {
  convert([&](const Tensor& t) { return t.to(device); }, {});
}

// --- state ---

StateDict Module::state_dict() const {
  StateDict state;
  const auto add = [&](const std::string& path, const Module& module) {
    for (const auto& slot : module.slots_)
      if (slot->value.defined()) state.set(joined(path, slot->name), slot->value.detach());
  };
  walk(*this, add, false);  // a module registered twice has two names
  return state;
}

namespace {

// Whether the state has one tensor under another name of the same parameter.
bool has_tied(const StateDict& own, const StateDict& state, const Tensor& value) {
  const auto is_there = [&](const StateDict::Entry& e) {
    const auto* other = std::get_if<Tensor>(&e.value);
    return other && other->shares_storage(value) && other->sizes() == value.sizes() &&
           other->strides() == value.strides() && other->offset() == value.offset() && state.contains(e.name);
  };
  return std::any_of(own.begin(), own.end(), is_there);
}

// Files of PyTorch 0.4 and earlier have no count of batches; the module keeps its own, as there.
bool may_be_missing(std::string_view name) {
  constexpr std::string_view kCount = "num_batches_tracked";
  return name == kCount || name.ends_with(std::string(".") + std::string(kCount));
}

}  // namespace

LoadResult Module::load_state_dict(const StateDict& state, bool strict) {
  const StateDict own = state_dict();  // shares storage with the parameters
  LoadResult result;
  std::vector<std::string> wrong;
  for (const auto& [name, value] : own) {
    if (!state.contains(name)) {
      if (!may_be_missing(name) && !has_tied(own, state, std::get<Tensor>(value))) result.missing.push_back(name);
    } else if (const auto* source = std::get_if<Tensor>(&state.at(name));
               !source || source->sizes() != std::get<Tensor>(value).sizes()) {
      wrong.push_back(fmt::format("{} is {} and should be {}", name, describe(state.at(name)), describe(value)));
    }
  }
  for (const auto& entry : state)
    if (!own.contains(entry.name)) result.unexpected.push_back(entry.name);
  std::string problems = listed("mis-shaped", wrong);
  if (strict) problems = listed("missing", result.missing) + listed("unexpected", result.unexpected) + problems;
  if (!problems.empty()) throwf("load_state_dict of {}: the keys do not fit:{}", kind(), problems);
  const NoGrad no_grad;
  for (const auto& [name, value] : own)
    if (state.contains(name)) std::get<Tensor>(value).copy_(state.tensor(name).detach());
  return result;
}

// --- calls ---

// Inside a layer the outer line is kept, because users do not know the lines of the layer's code.
static SourceLocation place(bool layer, SourceLocation loc) {
  if (!layer) return {};
  const SourceLocation outer = context().line;
  return outer.line() ? outer : loc;
}

std::int64_t count(const char* layer, const char* what, std::int64_t n) {
  if (n < 1) throwf("{}: {} is {}; it must be at least 1", layer, what, n);
  return n;
}

ModuleCall::ModuleCall(Module& module, SourceLocation loc)
    : module_(module), scope_(module.path_, place(module.layer_, loc)) {
  if (module.hook_) guard_ = module.hook_(module);
}

Tensor Module::call_fused(const Operand& x, OpId second, const Attrs& attrs, const Tensor& other, SourceLocation loc) {
  const std::optional<OpId> first = fused_rows() && !has_hooks() ? ends_in() : std::nullopt;
  const Fusion* const fusion = first ? find_fusion(*first, second) : nullptr;
  if (!fusion) return {};
  const ModuleCall call(*this, loc);
  return forward_fused(x, *fusion, attrs, other);
}

Tensor ModuleCall::leave(const Tensor& input, Tensor output) const {
  for (std::size_t i = 0; i < module_.forward_hooks_.size(); ++i) {
    const ForwardHook hook = module_.forward_hooks_[i].second;  // a copy: it may remove itself
    hook(module_, input, output);
  }
  return output;
}

std::uint64_t Module::register_forward_hook(ForwardHook hook) {
  forward_hooks_.emplace_back(next_hook_, not_null(std::move(hook), "register_forward_hook: the hook"));
  return next_hook_++;
}
void Module::remove_forward_hook(std::uint64_t id) {
  std::erase_if(forward_hooks_, [&](const auto& entry) { return entry.first == id; });
}

}  // namespace gradual::nn
