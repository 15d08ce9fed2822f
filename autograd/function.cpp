#include "function.h"

#include "autograd.h"
#include "rule.h"

namespace gradual {

struct FunctionAccess {
  static void set_needs(Function& f, int i) { f.needs_ |= 1u << i; }
  static void release(Function& f) { f.release(); }
};

namespace {

// The call of this thread that is on its way down: the chain carries a plain pointer, the tape wants shared ownership.
thread_local const std::shared_ptr<Function>* calling = nullptr;

void run_forward(const OpCall& call, Outputs& out) {
  Function& f = *call.get<CustomAttrs>().function;
  std::vector<Tensor> inputs;
  for (int i = 0; i < call.inputs.size(); ++i) {
    inputs.push_back(call[i]);
    if (call[i].defined() && call[i].requires_grad()) FunctionAccess::set_needs(f, i);
  }
  const std::shared_ptr<Function>* mine = calling;  // an apply() inside forward takes the slot
  std::vector<Tensor> results;
  {
    Chain& c = chain();
    const StageScope amp(c.amp, f.amp_dtype() ? nullptr : f.state().chain.amp);
    results = f.forward(inputs);
  }
  calling = mine;
  if (results.empty() || results.size() > kMaxOutputs)
    fail(f.name() + ": forward returned " + std::to_string(results.size()) + " tensors; allowed are 1 to " +
         std::to_string(kMaxOutputs));
  for (std::size_t i = 0; i < results.size(); ++i) {
    bool is_input = false;  // an input handed through gets a handle of its own, or its history would be overwritten
    for (const Tensor& x : inputs) is_input = is_input || (x.defined() && x.is_same(results[i]));
    out[static_cast<int>(i)] = is_input || results[i].requires_grad() ? results[i].detach() : results[i];
  }
}

void run_backward(const RuleContext& c) {
  Function& f = *c.node().function;
  const ThreadStateScope state(f.state());
  context().phase = Phase::backward;
  context().line = c.node().where;
  if (f.amp_dtype()) chain().amp = nullptr;
  chain().autograd = c.create_graph() ? default_autograd() : nullptr;
  std::vector<Tensor> grads;
  for (int i = 0; i < kMaxOutputs; ++i) grads.push_back(c.grad(i));
  std::vector<Tensor> results = f.backward(grads);
  if (static_cast<int>(results.size()) != c.inputs())
    fail(f.name() + ": backward returned " + std::to_string(results.size()) + " gradients for " +
         std::to_string(c.inputs()) + " inputs");
  for (int i = 0; i < c.inputs(); ++i) {
    const Tensor& g = results[static_cast<std::size_t>(i)];
    if (g.defined() && c.needs(i) && g.sizes() != c.sizes(i))
      fail(f.name() + ": backward gave input " + std::to_string(i) + " a gradient of shape " + to_string(g.sizes()) +
           "; the input is " + to_string(c.sizes(i)));
    c.set(i, g);
  }
}

}  // namespace

Function::~Function() { release(); }

std::shared_ptr<Function> function_of(const OpCall&) { return *calling; }
void release_function(Function& f) { FunctionAccess::release(f); }

void Function::save_for_backward(std::vector<Tensor> tensors) {
  saved_ = std::move(tensors);
  versions_.clear();
  for (const Tensor& t : saved_) {
    versions_.push_back(t.defined() ? t.version() : 0);
    if (t.defined()) t.unsafe_impl()->storage->add_saved();
  }
}

const std::vector<Tensor>& Function::saved() const {
  if (released_) fail(name() + ": what it saved is freed already; pass retain_graph to the first backward");
  for (std::size_t i = 0; i < saved_.size(); ++i)
    if (saved_[i].defined() && saved_[i].version() != versions_[i])
      fail(name() + ": a saved tensor " + to_string(saved_[i].sizes()) + " was changed in place since");
  return saved_;
}

void Function::release() {
  for (const Tensor& t : saved_)
    if (t.defined()) t.unsafe_impl()->storage->remove_saved();
  saved_.clear();
  released_ = true;
}

std::vector<Tensor> apply(const std::shared_ptr<Function>& function, const std::vector<Tensor>& inputs,
                          SourceLocation loc) {
  function->state_ = snapshot();
  std::vector<const Tensor*> refs;
  refs.reserve(inputs.size());
  for (const Tensor& t : inputs) refs.push_back(&t);
  const std::shared_ptr<Function>* outer = std::exchange(calling, &function);
  struct Restore {
    const std::shared_ptr<Function>* outer;
    ~Restore() { calling = outer; }
  } const restore{outer};
  const Outputs out = dispatch(OpId::custom, TensorRefs(refs.data(), static_cast<int>(refs.size())),
                               CustomAttrs{function.get()}, loc);
  std::vector<Tensor> results;
  for (const Tensor& t : out.values)
    if (t.defined()) results.push_back(t);
  return results;
}

void register_custom() {
  columns().cpu[static_cast<int>(OpId::custom)] = run_forward;
  columns().cuda[static_cast<int>(OpId::custom)] = run_forward;
  set_rule(OpId::custom, run_backward);
  rules()[static_cast<int>(OpId::custom)].differentiable = 7;
}

}  // namespace gradual
