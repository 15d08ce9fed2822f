#include "module.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <typeinfo>
#include <unordered_set>

#include "../autograd/grad_mode.h"
#include "../core/ops.h"

namespace gradual::nn {
namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : name.empty() ? prefix : prefix + "." + name;
}

std::string listed(const char* title, const std::vector<std::string>& keys) {
  return keys.empty() ? "" : fmt::format("\n  {}: {}", title, fmt::join(keys, ", "));
}

}  // namespace

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
  fail(kind() +
       ": has no forward for one tensor; call it with the inputs that its operator() takes, or override "
       "forward(const Tensor&)");
}

Tensor Module::operator()(const Tensor& x, SourceLocation loc) {
  const ModuleCall call(*this, loc);
  return call.leave(x, forward(x));
}

// --- registration ---

void Module::check_name(const std::string& name, const char* what) const {
  const auto refuse = [&](const char* why) {
    fail(fmt::format("{}: cannot register {} '{}': {}", kind(), what, name, why));
  };
  if (name.empty()) refuse("the name is empty");
  if (name.find('.') != std::string::npos) refuse("a name has no dots; they separate the parts of a path");
  const auto taken = [&](const auto& named) { return named->name == name; };
  if (std::ranges::any_of(slots_, taken) || std::ranges::any_of(children_, [&](const Child& c) { return taken(&c); }))
    refuse("the module has something of that name already");
}

Tensor& Module::register_parameter(const std::string& name, const Tensor& value, bool requires_grad) {
  check_name(name, "parameter");
  slots_.push_back(std::make_unique<Slot>(Slot{name, value, Kind::parameter}));
  Tensor& slot = slots_.back()->value;
  if (!slot.defined()) return slot;
  slot.set_category(Category::parameters);
  if (requires_grad && !slot.requires_grad()) slot.set_requires_grad();
  return slot;
}

Tensor& Module::register_buffer(const std::string& name, const Tensor& value) {
  check_name(name, "buffer");
  slots_.push_back(std::make_unique<Slot>(Slot{name, value, Kind::buffer}));
  return slots_.back()->value;
}

void Module::add_child(const std::string& name, const std::shared_ptr<Module>& module) {
  check_name(name, "module");
  if (!module) fail(kind() + ": cannot register module '" + name + "': the pointer is null");
  for (const auto& below : module->named_modules())
    if (below.second == this) fail(kind() + ": cannot register module '" + name + "': it would contain itself");
  children_.push_back({name, module});
  for (const auto& [below, m] : module->named_modules()) m->path_ = intern(joined(joined(path_, name), below));
}

// --- listing ---

std::vector<std::pair<std::string, Tensor>> Module::list(Kind kind, bool recurse) const {
  std::vector<std::pair<std::string, Tensor>> all;
  std::unordered_set<const TensorImpl*> seen;
  walk(*this, [&](const std::string& path, const Module& m) {
    if (!recurse && &m != this) return;
    for (const auto& slot : m.slots_)
      if (slot->kind == kind && slot->value.defined() && seen.insert(slot->value.unsafe_impl()).second)
        all.emplace_back(joined(path, slot->name), slot->value);
  });
  return all;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> all;
  walk(*this, [&](const std::string& path, Module& m) { all.emplace_back(path, &m); });
  return all;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> all;
  for (const auto& named : named_parameters()) all.push_back(named.second);
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
  const CauseScope cause("Module::to");
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

void Module::to(DType dtype, const std::function<bool(const Module&)>& which) {
  if (!is_floating(dtype))
    fail(kind() + ": cannot convert parameters to " + std::string(name(dtype)) + "; a floating dtype is right");
  convert([&](const Tensor& t) { return t.is_floating() ? t.to(dtype) : t; }, which);
}

void Module::to(Device device) {
  convert([&](const Tensor& t) { return t.to(device); }, {});
}

void Module::zero_grad() {
  for (const Tensor& p : parameters()) p.zero_grad();
}

void Module::set_requires_grad(bool value) {
  for (Tensor& p : parameters()) p.set_requires_grad(value);
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

LoadResult Module::load_state_dict(const StateDict& state, bool strict) {
  const StateDict own = state_dict();  // shares storage with the parameters
  LoadResult result;
  std::vector<std::string> wrong;
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const auto& [name, value] : own) {
    if (!state.contains(name)) {
      result.missing.push_back(name);
      continue;
    }
    const Tensor& target = std::get<Tensor>(value);
    const StateValue& given = state.at(name);
    const auto* source = std::get_if<Tensor>(&given);
    if (!source || source->sizes() != target.sizes()) {
      wrong.push_back(name + " is " + describe(given) + " and should be " + describe(value));
    } else {
      copies.emplace_back(target, *source);
    }
  }
  for (const auto& entry : state)
    if (!own.contains(entry.name)) result.unexpected.push_back(entry.name);
  std::string problems = listed("mis-shaped", wrong);
  if (strict) problems = listed("missing", result.missing) + listed("unexpected", result.unexpected) + problems;
  if (!problems.empty()) fail("load_state_dict of " + kind() + ": the keys do not fit:" + problems);
  const NoGrad no_grad;
  for (const auto& [target, source] : copies) target.copy_(source.detach());
  return result;
}

// --- calls ---

std::uint64_t Module::register_forward_hook(ForwardHook hook) {
  forward_hooks_.emplace_back(next_hook_, std::move(hook));
  return next_hook_++;
}

void Module::remove_forward_hook(std::uint64_t id) {
  std::erase_if(forward_hooks_, [&](const auto& entry) { return entry.first == id; });
}

// Inside a layer the outer line counts; a layer's own code has no lines a user knows.
static SourceLocation place(bool layer, SourceLocation loc) {
  if (!layer) return {};
  const SourceLocation outer = context().line;
  return outer.line() ? outer : loc;
}

ModuleCall::ModuleCall(Module& module, SourceLocation loc)
    : module_(module), scope_(module.path_, place(module.layer_, loc)) {
  if (module.hook_) guard_ = module.hook_->enter(module);
}

Tensor ModuleCall::leave(const Tensor& input, Tensor output) const {
  for (std::size_t i = 0; i < module_.forward_hooks_.size(); ++i) {
    const ForwardHook hook = module_.forward_hooks_[i].second;  // a copy: it may remove itself
    hook(module_, input, output);
  }
  return output;
}

}  // namespace gradual::nn
