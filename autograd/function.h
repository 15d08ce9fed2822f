// User-defined differentiable functions: derive, save what backward needs, and call apply().
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../core/ops/dispatch.h"
#include "node.h"

namespace gradual {

// One object serves one call of apply(). forward runs with recording off. backward receives the gradients of the
// outputs (undefined if there is none) and returns one for each input (undefined: no gradient). backward runs under
// forward's amp state, generator and module; if it uses public ops, it can be differentiated again.
class Function : public std::enable_shared_from_this<Function> {
 public:
  virtual ~Function() { release(); }
  virtual std::vector<Tensor> forward(const std::vector<Tensor>& inputs) = 0;  // one to three outputs
  virtual std::vector<Tensor> backward(const std::vector<Tensor>& grads) = 0;
  virtual std::string name() const { return "custom"; }
  // If set: under autocast, floating inputs are cast to this dtype, and forward and backward run with autocast off.
  virtual std::optional<DType> amp_dtype() const { return std::nullopt; }

  // The op of the table that it stands for (amp/rewrite.h); null: none.
  virtual const Replaced* replaces() const { return nullptr; }
  // True if backward records a tape of its own, which may lead to any tensor (a checkpoint).
  virtual bool records_in_backward() const { return false; }

  const ThreadState& state() const { return state_; }  // the thread's state when apply() was called

 protected:
  // Keeps tensors for backward; saved() is an Error if one was changed in place since.
  void save_for_backward(std::vector<Tensor> tensors);
  const std::vector<Tensor>& saved() const;
  bool needs_input_grad(int i) const { return needs_ & input_bit(i); }
  const Modes& modes_of_backward() const { return modes_of_backward_; }  // of the thread that runs backward
  std::uint32_t needs() const { return needs_; }                         // the inputs that need a gradient (input_bit)

 private:
  friend std::vector<Tensor> apply(const std::shared_ptr<Function>&, const std::vector<Tensor>&, SourceLocation);
  friend struct FunctionColumns;
  friend struct Node;
  void release();

  ThreadState state_{};
  Modes modes_of_backward_{};
  std::uint32_t needs_ = 0;
  int outputs_ = 0;
  bool applied_ = false;
  bool released_ = false;
  std::vector<Tensor> saved_;
  std::vector<std::uint32_t> versions_;
  std::vector<int> output_of_;  // index of the output that a saved tensor is, or -1
};

std::vector<Tensor> apply(const std::shared_ptr<Function>& function, const std::vector<Tensor>& inputs,
                          SourceLocation loc = SourceLocation::current());

void register_custom();

}  // namespace gradual
