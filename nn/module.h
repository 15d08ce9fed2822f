// Module: the base of layers and models. It owns named parameters, buffers and child modules.
//
//   struct Net : nn::Module {
//     nn::Linear& fc1 = register_module("fc1", nn::Linear(64, 128));
//     nn::Linear& fc2 = register_module("fc2", nn::Linear(128, 10));
//     Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
//   };
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "../core/files/state_dict.h"
#include "../core/ops/fusions.h"
#include "../core/tensor/tensor.h"

namespace gradual::nn {

class Module;

// Surrounds every call of a module it was set on: amp's per-module overrides. Runs when the call begins, and what it
// returns is destroyed when the call ends, on exceptions too.
using ModuleHook = std::function<std::shared_ptr<void>(Module& module)>;

// Sees each call's first input and output: for observers.
using ForwardHook = std::function<void(Module& module, const Tensor& input, const Tensor& output)>;

// The keys that load_state_dict(.., strict = false) passed over.
struct LoadResult {
  std::vector<std::string> missing;     // in the module, not in the state dict
  std::vector<std::string> unexpected;  // in the state dict, not in the module
};

// Not copyable. A module may be moved: everything it registered lives on the heap and keeps its address, so that the
// references which register_parameter and register_module return stay valid.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(Module&&) = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  Module& operator=(Module&&) = delete;

  // What the layer computes. Modules with several inputs add their own operator() (with a ModuleCall) instead.
  virtual Tensor forward(const Tensor& x);
  // Calls forward inside this module's scope: ops carry its path, and inside a Layer the place of this call.
  Tensor operator()(const Tensor& x, SourceLocation loc = SourceLocation::current());

  // Names have no dots and are unique in a module. The reference is the registered slot itself: assigning to it
  // (head.weight = embedding.weight) ties parameters. An undefined tensor holds a place and is listed nowhere.
  Tensor& register_parameter(const std::string& name, const Tensor& value, bool requires_grad = true);
  Tensor& register_buffer(const std::string& name, const Tensor& value) { return add_slot(name, value, Kind::buffer); }
  // Takes the module over; the reference is to its new place.
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

  // Dotted paths, in the order of registration, a module's own before its children's. What is shared is listed
  // once, under its first name. recurse = false: the module's own alone.
  std::vector<std::pair<std::string, Tensor>> named_parameters(bool recurse = true) const {
    return list(Kind::parameter, recurse);
  }
  std::vector<std::pair<std::string, Tensor>> named_buffers(bool recurse = true) const {
    return list(Kind::buffer, recurse);
  }
  std::vector<std::pair<std::string, Module*>> named_modules();  // the module itself first, under ""
  std::vector<Tensor> parameters() const;

  // The class's name without its namespaces: "Linear".
  std::string kind() const;
  // Where the module was last registered, from the root: "layers.0.attn"; "" for a root. Lives as long as the process.
  const char* path() const { return path_; }

  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  void set_training(bool on) { training_ = on; }  // this module alone

  // Converts floating parameters, their gradients and floating buffers; with `which`, those of the modules for which
  // it is true. Handles stay the same tensors, so optimizers and other owners see the change. Buffers of integers
  // keep their dtype.
  void to(DType dtype, const std::function<bool(const Module&)>& which = {});
  void to(Device device);
  void zero_grad();
  void set_requires_grad(bool value);

  // The stored tensors themselves (detached, sharing storage); clone() what must outlive the next step. What is shared
  // appears under each of its names.
  StateDict state_dict() const;
  // Copies values in, converted to the dtypes stored here. Error, with nothing written, listing every missing,
  // unexpected and mis-shaped key; strict = false lets missing and unexpected keys pass and returns them.
  LoadResult load_state_dict(const StateDict& state, bool strict = true);

  std::uint64_t register_forward_hook(ForwardHook hook);  // an id for remove_forward_hook
  void remove_forward_hook(std::uint64_t id);
  void set_hook(ModuleHook hook) { hook_ = std::move(hook); }  // null: none
  bool has_hooks() const { return hook_ || !forward_hooks_.empty(); }

  // What Sequential asks of a layer and the next one, to run two ops as one (core/ops/fusions.h). A class derived from a layer
  // may compute otherwise, so the layers of this library answer for themselves alone.
  // The op that this module is, of one input, with its attributes; none by default.
  virtual std::optional<std::pair<OpId, Attrs>> as_op() const { return std::nullopt; }
  // The op that forward ends in, where forward_fused can run a fusion in its place; none by default.
  virtual std::optional<OpId> ends_in() const { return std::nullopt; }
  // second(forward(x)) for a fusion whose first op is ends_in().
  virtual Tensor forward_fused(const Tensor& x, const Fusion& fusion, const Attrs& second);

 protected:
  struct Child {
    std::string name;
    std::shared_ptr<Module> module;
  };
  const std::vector<Child>& children() const { return children_; }

 private:
  friend class Layer;
  friend class ModuleCall;
  enum class Kind : std::uint8_t { parameter, buffer };
  struct Slot {
    std::string name;
    Tensor value;
    Kind kind;
  };
  // visit(path of the module, module), each module once, or as often as it was registered.
  template <class M, class F> static void walk(M& root, const F& visit, bool once = true);
  std::vector<std::pair<std::string, Tensor>> list(Kind kind, bool recurse) const;
  void check_name(const std::string& name, const char* what) const;
  Tensor& add_slot(const std::string& name, const Tensor& value, Kind kind);
  void add_child(const std::string& name, const std::shared_ptr<Module>& module);
  template <class F> void convert(const F& converted, const std::function<bool(const Module&)>& which);

  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Child> children_;
  std::vector<std::pair<std::uint64_t, ForwardHook>> forward_hooks_;
  ModuleHook hook_;
  const char* path_ = "";
  std::uint64_t next_hook_ = 1;
  bool training_ = true;
  bool layer_ = false;
};

// A module whose inside is nobody's concern: its ops carry the place where the layer was called. Derive models from
// Module instead, so that their ops carry the lines of your forward.
class Layer : public Module {
 protected:
  Layer() { layer_ = true; }
  // `value` where this layer is an L itself, none where it is of a class derived from L: what as_op and ends_in return.
  template <class L, class T> std::optional<T> only(const T& value) const {
    return typeid(*this) == typeid(L) ? std::optional(value) : std::nullopt;
  }
  // n, the number of what a layer is made for; Error naming the layer and `what` where it is less than one.
  static std::int64_t count(const char* layer, const char* what, std::int64_t n);
};

// A running call of a module: its scope and its hook's guard. What Module::operator() uses; a layer with more inputs
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
