// Sequential: modules one after the other, named "0", "1", .. ModuleList: modules that a model calls as it likes.
#pragma once

#include "module.h"

namespace gradual::nn {

// Holds modules (moved in) or shared pointers to modules, named by their number.
template <class Base> class ModulesByNumber : public Base {
 public:
  // Returns a reference to the module, or the pointer that was given.
  template <class M> decltype(auto) push_back(M&& module) {
    return this->register_module(std::to_string(size()), std::forward<M>(module));
  }
  std::size_t size() const { return this->children().size(); }
  Module& operator[](std::size_t i) {
    if (i < size()) return *this->children()[i].module;
    throw_error(this->kind() + ": no module " + std::to_string(i) + "; there are " + std::to_string(size()));
  }
};

// For a model's own forward: `for (std::size_t i = 0; i < layers.size(); ++i) x = layers[i](x) + x;`.
class ModuleList : public ModulesByNumber<Module> {};

//   nn::Sequential model{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10)};
class Sequential : public ModulesByNumber<Layer> {
 public:
  Sequential() = default;
  // A single argument is also a module to hold, except a Sequential: that is a move.
  template <class... M>
    requires(sizeof...(M) != 1 || !(std::is_same_v<std::remove_cvref_t<M>, Sequential> || ...))
  explicit Sequential(M&&... modules) {
    (push_back(std::forward<M>(modules)), ...);
  }
  // Runs Linear with ReLU or GELU, and BatchNorm with ReLU, as one op, unless either has a hook or an UnfusedScope
  // is active. The bits are the same (except linear_gelu on a GPU, see core/ops/ops.h).
  Tensor forward(const Tensor& x) override;
  using Module::operator();
};

}  // namespace gradual::nn
