// What a translated model (translate.h) uses beside the library's own layers and ops.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../autograd/grad_mode.h"
#include "../core/ops/dispatch.h"
#include "../nn/module.h"
#include "value.h"

namespace gradual::pt2 {

// Runs a row of the table of aten ops (ops_table.h), for what the library has no function of its own. Arguments are in
// the order of the row; those left out have their defaults. `module` gives the mode. New tensors are on the device of
// the first tensor among the arguments, or of the module's parameters. Errors name the op.
Tensor call(const nn::Module& module, const char* target, std::vector<Value> arguments, Loc loc = Loc::current());
std::vector<Tensor> call_many(const nn::Module& module, const char* target, std::vector<Value> arguments,
                              Loc loc = Loc::current());
std::int64_t call_integer(const nn::Module& module, const char* target, std::vector<Value> arguments,
                          Loc loc = Loc::current());
double call_number(const nn::Module& module, const char* target, std::vector<Value> arguments,
                   Loc loc = Loc::current());

// The tensor of which `view`, as the op made it, is output `place`, with the numbers that `view` has now.
Tensor write_through(const nn::Module& module, const char* target, std::vector<Value> arguments, const Tensor& view,
                     int place = 0, Loc loc = Loc::current());

// Gives a buffer a new value, without a gradient. Nothing in a recomputation, which repeats a call.
void update(Tensor& buffer, const Tensor& value);

// `value` in the dtype and sizes of `old`, which an in-place op replaces.
Tensor in_place_of(const Tensor& old, const Tensor& value);

// A tensor of an archive that the state dict does not have. Error if there is none.
Tensor constant(const std::string& archive, const std::string& key);

// What f returns, computed without the tape; without autocast.
template <class F> auto without_grad(const F& f) {
  const NoGrad no_grad;
  return f();
}
template <class F> auto without_autocast(const F& f) {
  const StageScope amp(chain().amp, nullptr);
  return f();
}

// Modules of one class, named "0", "1", ..: PyTorch's ModuleList, of equal blocks.
template <class M> class ListOf : public nn::Module {
 public:
  // Each is M(), or what make() returns.
  explicit ListOf(int count)
    requires std::is_default_constructible_v<M>
      : ListOf(count, [] { return M(); }) {}
  template <class Make> ListOf(int count, const Make& make) {
    for (int i = 0; i < count; ++i)
      modules_.push_back(register_module(std::to_string(i), std::make_shared<M>(make())).get());
  }
  M& operator[](std::size_t i) { return *modules_.at(i); }
  auto begin() const { return modules_.begin(); }  // of pointers
  auto end() const { return modules_.end(); }
  std::size_t size() const { return modules_.size(); }

 private:
  std::vector<M*> modules_;
};

}  // namespace gradual::pt2
