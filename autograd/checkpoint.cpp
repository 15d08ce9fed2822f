#include "checkpoint.h"

#include <memory>
#include <utility>

#include "../core/ops.h"
#include "engine.h"
#include "function.h"
#include "grad_meta.h"

namespace gradual {
namespace {

thread_local int depth = 0;

struct Recomputation {
  Recomputation() { ++depth; }
  ~Recomputation() { --depth; }
  Recomputation(const Recomputation&) = delete;
  Recomputation& operator=(const Recomputation&) = delete;
};

// Input 0 is a tensor that requires grad and gets none: with it the call is recorded, and the parameters that fn
// captured get their gradients, even where no input requires grad (token indices).
class Checkpoint final : public Function {
 public:
  explicit Checkpoint(Segment fn) : fn_(std::move(fn)) {}
  std::string name() const override { return "checkpoint"; }

  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    line_ = state().context.line;
    for (std::size_t i = 0; i < inputs.size(); ++i) needs_.push_back(needs_input_grad(static_cast<int>(i)));
    save_for_backward(inputs);
    context().line = line_;
    return fn_({inputs.begin() + 1, inputs.end()});
  }

  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    const bool create_graph = grad_enabled();
    const std::vector<Tensor> saved_inputs = saved();
    const std::uint64_t since = next_sequence();
    std::vector<Tensor> inputs(saved_inputs.begin() + 1, saved_inputs.end());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || create_graph) continue;
      inputs[i] = inputs[i].detach();
      if (needs_[i + 1]) inputs[i].set_requires_grad();
    }
    const std::vector<Tensor> outputs = recompute(inputs);
    if (outputs.size() != grads.size()) fail("checkpoint: fn gave another number of outputs when it ran again");
    std::vector<Tensor> reached, reached_grads;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
      reached.push_back(outputs[i]);
      reached_grads.push_back(grads[i]);
    }
    // What lies before this segment belongs to the backward that we are a step of: leaves and other tensors that fn
    // captured and, where the backward is recorded, the inputs.
    autograd::Engine engine(reached, reached_grads, {.create_graph = create_graph},
                            {.outer = autograd::Engine::current(), .since = since});
    engine.run();
    std::vector<Tensor> results(saved_inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined() && !create_graph) results[i + 1] = inputs[i].grad();
    return results;
  }

 private:
  std::vector<Tensor> recompute(const std::vector<Tensor>& inputs) const {
    const Recomputation running;
    const EnableGrad recording;
    context().line = line_;
    context().backward_of = "";
    const CauseScope cause(intern("recomputed in backward"));
    return fn_(inputs);
  }

  Segment fn_;
  SourceLocation line_;
  std::vector<bool> needs_;
};

}  // namespace

bool recomputing() { return depth > 0; }

std::vector<Tensor> checkpoint(Segment fn, const std::vector<Tensor>& inputs, SourceLocation loc) {
  if (!grad_enabled()) return fn(inputs);
  std::vector<Tensor> all{empty({0}, {.requires_grad = true})};
  all.insert(all.end(), inputs.begin(), inputs.end());
  return apply(std::make_shared<Checkpoint>(std::move(fn)), all, loc);
}

Tensor checkpoint(std::function<Tensor(const Tensor&)> fn, const Tensor& input, SourceLocation loc) {
  const Segment one = [fn = std::move(fn)](const std::vector<Tensor>& x) { return std::vector<Tensor>{fn(x[0])}; };
  return checkpoint(one, {input}, loc)[0];
}

}  // namespace gradual
