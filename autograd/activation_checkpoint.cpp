#include "activation_checkpoint.h"

#include <algorithm>

#include "../core/support/throwf.h"
#include "engine.h"
#include "function.h"

namespace gradual {
namespace {

// Input 0 is a dummy tensor that requires grad. It makes the call recorded even if no real input requires grad (token
// indices), so that parameters captured by fn get gradients.
struct Checkpoint final : Function {
  explicit Checkpoint(SegmentFn fn) : fn_(std::move(fn)) {}
  std::string name() const override { return "checkpoint"; }
  bool records_in_backward() const override { return true; }

  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    save_for_backward(inputs);
    const DrawScope draws(draws_, DrawScope::Mode::record);
    const Scoped here(modes().segment, recomputing() ? Segment::again : Segment::first);
    return fn_({inputs.begin() + 1, inputs.end()});
  }

  // Nodes recorded before the recomputation (the inputs, and leaves and other tensors that fn captured) belong to the
  // outer backward. Their gradients go there one by one, so the sums have the order and the bits that they have without
  // checkpointing. Nothing is left to return.
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    const std::vector<Tensor>& inputs = saved();
    const std::uint64_t since = next_sequence();
    const std::vector<Tensor> outputs = recompute({inputs.begin() + 1, inputs.end()});
    if (outputs.size() != grads.size())
      throwf("checkpoint: fn gave {} tensors in forward and {} when it ran again", grads.size(), outputs.size());
    std::vector<Tensor> reached, reached_grads;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
      reached.push_back(outputs[i]);
      reached_grads.push_back(grads[i]);
    }
    autograd::Engine& outer = *autograd::Engine::current();
    autograd::Engine engine(reached, reached_grads, {.create_graph = grad_enabled(), .sums = outer.sums()},
                            {.outer = &outer, .since = since});
    // The rules run in the modes of backward, as they do without checkpointing; fn_ has run in those of forward.
    const Scoped modes_of_rules(modes(), modes_of_backward());
    engine.run();
    return std::vector<Tensor>(inputs.size());
  }

  std::vector<Tensor> recompute(const std::vector<Tensor>& inputs) {
    const DrawScope draws(draws_, DrawScope::Mode::replay);
    const Scoped again(modes().segment, Segment::again);
    const EnableGrad recording;
    context().line = state().context.line;
    context().backward_of = "";
    const CauseScope cause(causes::recomputation);
    return fn_(inputs);
  }

  SegmentFn fn_;
  std::vector<RandomKey> draws_;
};

}  // namespace

std::vector<Tensor> checkpoint(SegmentFn fn, const std::vector<Tensor>& inputs, SourceLocation loc) {
  not_null(fn, "checkpoint: the function");
  if (!grad_enabled()) return fn(inputs);
  const auto first = std::ranges::find_if(inputs, &Tensor::defined);
  const Device device = first == inputs.end() ? Device::cpu() : first->device();
  std::vector<Tensor> all{empty({0}, {.device = device, .requires_grad = true})};
  all.insert(all.end(), inputs.begin(), inputs.end());
  return apply(std::make_shared<Checkpoint>(std::move(fn)), all, loc);
}

Tensor checkpoint(std::function<Tensor(const Tensor&)> fn, const Tensor& input, SourceLocation loc) {
  const SegmentFn one = [fn = not_null(std::move(fn), "checkpoint: the function")](const std::vector<Tensor>& x) {
    return std::vector<Tensor>{fn(x[0])};
  };
  return checkpoint(one, std::vector<Tensor>{input}, loc)[0];
}

}  // namespace gradual
