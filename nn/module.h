// Module: the base of layers and models. It owns named parameters, buffers and child modules.
//
//   struct Net : nn::Module {
//     nn::Linear& fc1 = register_module("fc1", nn::Linear(64, 128));
//     nn::Linear& fc2 = register_module("fc2", nn::Linear(128, 10));
//     Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
//   };
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "../core/files/state_dict.h"
#include "../core/ops/fusions.h"
#include "../core/ops/ops.h"

namespace gradual::nn {

class Module;

// Surrounds every call of its module (amp's per-module overrides). Runs when a call begins. The object that it returns
// is destroyed when the call ends, on exceptions too.
using ModuleHook = std::function<std::shared_ptr<void>(Module& module)>;

// Receives each call's first input and its output.
using ForwardHook = std::function<void(Module& module, const Tensor& input, const Tensor& output)>;

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// What a buffer holds. running_statistic: a mean or a variance over batches, which training updates and evaluation
// divides by.
enum class BufferKind : std::uint8_t { other, running_statistic };

// The keys that load_state_dict(.., strict = false) ignored.
struct LoadResult {
  std::vector<std::string> missing;     // in the module, not in the state dict
  std::vector<std::string> unexpected;  // in the state dict, not in the module
};

// Not copyable. A module may be moved: everything that it registered is on the heap and keeps its address, so the
// references that register_parameter and register_module returned stay valid.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(Module&&) = default;

  // Computes the layer. Inputs promote as in ops: f64 with f32 weights gives f64, f16 and integers give f32. Norms take
  // floats and give the input's dtype. Modules with several inputs define their own operator() (with a ModuleCall)
  // instead.
  virtual Tensor forward(const Tensor& x);
  // Calls forward inside this module's scope: ops carry its path, and inside a Layer the line of this call.
  Tensor operator()(const Tensor& x, SourceLocation loc = SourceLocation::current());

  // Names have no dots and are unique in a module. Returns a reference to the registered tensor; assigning to it
  // (head.weight = embedding.weight) ties parameters. An undefined tensor reserves a name and is not listed.
  Tensor& register_parameter(const std::string& name, const Tensor& value, bool requires_grad = true);
  Tensor& register_buffer(const std::string& name, const Tensor& value, BufferKind kind = BufferKind::other) {
    return add_slot(name, value, kind == BufferKind::other ? Kind::buffer : Kind::running_statistic);
  }
  // Moves the module in; returns a reference to it.
  template <class M>
    requires std::is_base_of_v<Module, M>
  M& register_module(const std::string& name, M&& module) {
    return *register_module(name, std::make_shared<M>(std::forward<M>(module)));
  }
  template <class M>
    requires std::is_base_of_v<Module, M>
  std::shared_ptr<M> register_module(const std::string& name, std::shared_ptr<M> module) {
    add_child(name, module);
    return module;
  }

  // Dotted paths in the order of registration, a module's own before its children's. A shared tensor is listed
  // once, under its first name. recurse = false: only the module's own.
  NamedTensors named_parameters(bool recurse = true) const { return list({Kind::parameter}, recurse); }
  NamedTensors named_buffers(bool recurse = true) const {
    return list({Kind::buffer, Kind::running_statistic}, recurse);
  }
  // The buffers of kind running_statistic.
  NamedTensors named_running_statistics(bool recurse = true) const { return list({Kind::running_statistic}, recurse); }
  std::vector<std::pair<std::string, Module*>> named_modules();  // the module itself first, under ""
  std::vector<Tensor> parameters() const {
    std::vector<Tensor> all;
    for (const auto& named : named_parameters()) all.push_back(named.second);
    return all;
  }

  // The class's name without its namespaces: "Linear".
  std::string kind() const;
  // The path from the root at the last registration: "layers.0.attn"; "" for a root. Valid as long as the process.
  const char* path() const { return path_; }

  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  void set_training(bool on) { training_ = on; }  // only this module

  // Converts floating parameters, their gradients and floating buffers; with `which`, only in modules for which it
  // returns true. Handles stay the same tensors, so optimizers and other owners see the change. Integer buffers keep
  // their dtype.
  void to(DType dtype, const std::function<bool(const Module&)>& which = {});
  void to(Device device);
  void zero_grad() {
    for (const Tensor& p : parameters()) p.zero_grad();
  }
  void set_requires_grad(bool value) {
    for (Tensor& p : parameters()) p.set_requires_grad(value);
  }

  // The stored tensors (detached, sharing storage); clone() what must outlive the next step. A shared tensor appears
  // under each of its names.
  StateDict state_dict() const;
  // Copies values in, converted to the dtypes stored here. Error, with nothing written, listing every missing,
  // unexpected and mis-shaped key; strict = false lets missing and unexpected keys pass and returns them.
  LoadResult load_state_dict(const StateDict& state, bool strict = true);

  std::uint64_t register_forward_hook(ForwardHook hook);  // an id for remove_forward_hook
  void remove_forward_hook(std::uint64_t id);
  void set_hook(ModuleHook hook) { hook_ = std::move(hook); }  // null: none
  // What trains the module (amp::RecipeRun); a move of the module takes it along.
  std::weak_ptr<void>& trainer() { return trainer_; }
  bool has_hooks() const { return hook_ || !forward_hooks_.empty(); }

  // Sequential and TransformerBlock use these to run two adjacent layers as one fused op (core/ops/fusions.h). A class
  // derived from a layer may compute something else, so the library's layers answer only for their exact type (only()).
  // The op of one input that this module computes, with its attributes; none by default.
  virtual std::optional<std::pair<OpId, Attrs>> as_op() const { return std::nullopt; }
  // The last op of forward, if forward_fused can run a fusion in its place; none by default.
  virtual std::optional<OpId> ends_in() const { return std::nullopt; }
  // Calls the module and then `second` as one op: second(this(x), other). Undefined, and nothing runs, if ends_in() and
  // `second` do not fuse, a hook must see the tensor between the two, or an UnfusedScope is active.
  Tensor call_fused(const Operand& x, OpId second, const Attrs& attrs, const Tensor& other = {},
                    SourceLocation loc = SourceLocation::current());
  // second(forward(x), other) for a fusion whose first op is ends_in(). `other`: the further input of `second`, if any.
  virtual Tensor forward_fused(const Operand& x, const Fusion& fusion, const Attrs& second, const Tensor& other);

 protected:
  struct Child {
    std::string name;
    std::shared_ptr<Module> module;
  };
  const std::vector<Child>& children() const { return children_; }

 private:
  friend class Layer;
  friend class ModuleCall;
  enum class Kind : std::uint8_t { parameter, buffer, running_statistic };
  struct Slot {
    std::string name;
    Tensor value;
    Kind kind;
  };
  // visit(path of the module, module), each module once, or as often as it was registered.
  template <class M, class F> static void walk(M& root, const F& visit, bool once = true);
  NamedTensors list(std::initializer_list<Kind> kinds, bool recurse) const;
  void check_name(const std::string& name, const char* what) const;
  Tensor& add_slot(const std::string& name, const Tensor& value, Kind kind);
  void add_child(const std::string& name, const std::shared_ptr<Module>& module);
  template <class F> void convert(const F& converted, const std::function<bool(const Module&)>& which);

  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Child> children_;
  std::vector<std::pair<std::uint64_t, ForwardHook>> forward_hooks_;
  ModuleHook hook_;
  std::weak_ptr<void> trainer_;
  const char* path_ = "";
  std::uint64_t next_hook_ = 1;
  bool training_ = true;
  bool layer_ = false;
};

// A module whose ops carry the line where the layer was called. Derive models from Module instead; then their ops carry
// the lines of your forward.
class Layer : public Module {
 protected:
  Layer() { layer_ = true; }
  // `value` if this layer is exactly an L, none if its class derives from L. For as_op and ends_in.
  template <class L, class T> std::optional<T> only(const T& value) const {
    return typeid(*this) == typeid(L) ? std::optional(value) : std::nullopt;
  }
};

// Returns n, a size of a layer; Error naming the layer and `what` if it is less than one.
std::int64_t count(const char* layer, const char* what, std::int64_t n);

// A running call of a module: its scope and its hook's guard. Module::operator() uses it; a layer with more inputs
// writes its own:
//   Tensor operator()(const Tensor& q, const Tensor& k, Loc loc = Loc::current()) {
//     const nn::ModuleCall call(*this, loc);
//     return call.leave(q, forward(q, k));
//   }
class ModuleCall : Pinned {
 public:
  ModuleCall(Module& module, SourceLocation loc);
  // Shows the call to the forward hooks; returns the output.
  Tensor leave(const Tensor& input, Tensor output) const;

 private:
  Module& module_;
  ModuleScope scope_;
  std::shared_ptr<void> guard_;  // destroyed before the scope
};

}  // namespace gradual::nn
