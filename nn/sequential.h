// Sequential: modules one after the other, named "0", "1", ..
#pragma once

#include "module.h"

namespace gradual::nn {

//   nn::Sequential model{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10)};
// Holds modules (moved in) or shared pointers to modules.
class Sequential : public Layer {
 public:
  Sequential() = default;
  // A single argument is also a module to hold, except a Sequential: that is a move.
  template <class First, class... Rest>
    requires(!std::is_same_v<std::remove_cvref_t<First>, Sequential> || sizeof...(Rest) > 0)
  explicit Sequential(First&& first, Rest&&... rest) {
    push_back(std::forward<First>(first));
    (push_back(std::forward<Rest>(rest)), ...);
  }
  // Returns a reference to the module, or the pointer that was given.
  template <class M> decltype(auto) push_back(M&& module) {
    using Given = std::remove_cvref_t<M>;
    if constexpr (std::is_base_of_v<Module, Given>) {
      static_assert(!std::is_lvalue_reference_v<M>,
                    "a named layer is moved in, or shared: Sequential(std::move(layer)) or a std::shared_ptr");
      if constexpr (!std::is_lvalue_reference_v<M>)
        return register_module(std::to_string(size()), std::forward<M>(module));
    } else {
      return register_module(std::to_string(size()), std::forward<M>(module));
    }
  }
  std::size_t size() const { return children().size(); }
  Module& operator[](std::size_t i) {
    if (i < size()) return *children()[i].module;
    throw_error("Sequential: no module " + std::to_string(i) + "; there are " + std::to_string(size()));
  }
  // Runs Linear with ReLU or GELU, and BatchNorm with ReLU, as one op, unless either has a hook or an UnfusedScope
  // is active. The bits are the same (except linear_gelu on a GPU, see core/ops/ops.h).
  Tensor forward(const Tensor& x) override;
  using Module::operator();
};

// PyTorch's name where a model's own forward calls the modules: x = layers[i](x) + x.
using ModuleList = Sequential;

}  // namespace gradual::nn
