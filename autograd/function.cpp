#include "function.h"

#include <utility>

#include "autograd.h"
#include "grad_meta.h"
#include "rule.h"

namespace gradual {

struct FunctionAccess {
  // As the tape marks them: inputs past the 31st share a bit.
  static void set_needs(Function& f, int i) { f.needs_ |= 1u << (i < 31 ? i : 31); }
  static int& outputs(Function& f) { return f.outputs_; }
  static void release(Function& f) { f.release(); }
  static const std::vector<Tensor>& saved(const Function& f) { return f.saved_; }
  // Output `i` was saved: the function keeps a handle without history, which would make a cycle.
  static bool note_saved_output(Function& f, int i, const Tensor& result) {
    bool any = false;
    for (std::size_t k = 0; k < f.saved_.size(); ++k) {
      if (!f.saved_[k].defined() || !f.saved_[k].is_same(result)) continue;
      f.output_of_[k] = i;
      any = true;
    }
    return any;
  }
  // While it lives, saved outputs are on the tape again: for gradients of gradients.
  class OutputsOnTape {
   public:
    OutputsOnTape(Function& f, Node& node, bool wanted) : f_(f) {
      if (!wanted) return;
      kept_ = f.saved_;
      for (std::size_t k = 0; k < kept_.size(); ++k) {
        if (f.output_of_[k] < 0) continue;
        f.saved_[k] = detached(kept_[k]);
        set_history(f.saved_[k], Ref<Node>::share(&node), static_cast<std::uint32_t>(f.output_of_[k]));
      }
    }
    ~OutputsOnTape() {
      if (!kept_.empty()) f_.saved_.swap(kept_);
    }
    OutputsOnTape(const OutputsOnTape&) = delete;
    OutputsOnTape& operator=(const OutputsOnTape&) = delete;

   private:
    Function& f_;
    std::vector<Tensor> kept_;
  };
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
  FunctionAccess::outputs(f) = static_cast<int>(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    // An input handed through, a tensor returned twice or saved gets a handle of its own: its history is its own.
    const Tensor& y = results[i];
    if (!y.defined()) fail(f.name() + ": forward returned an undefined tensor");
    bool taken = FunctionAccess::note_saved_output(f, static_cast<int>(i), y) || y.requires_grad();
    for (const Tensor& x : inputs) taken = taken || (x.defined() && x.is_same(y));
    for (std::size_t k = 0; k < i; ++k) taken = taken || results[k].is_same(y);
    out[static_cast<int>(i)] = taken ? y.detach() : y;
  }
}

void run_backward(const RuleContext& c) {
  Function& f = *c.node().function;
  const ThreadStateScope state(f.state());
  context().phase = Phase::backward;
  context().line = c.node().where;
  context().backward_of = intern(f.name());
  if (f.amp_dtype()) chain().amp = nullptr;
  chain().autograd = c.create_graph() ? default_autograd() : nullptr;
  std::vector<Tensor> grads;
  for (int i = 0; i < FunctionAccess::outputs(f); ++i) grads.push_back(c.grad(i));
  const FunctionAccess::OutputsOnTape outputs(f, c.node(), c.create_graph());
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
const std::vector<Tensor>& saved_by(const Function& f) { return FunctionAccess::saved(f); }
void release_function(Function& f) { FunctionAccess::release(f); }

void Function::save_for_backward(std::vector<Tensor> tensors) {
  release();
  released_ = false;
  saved_ = std::move(tensors);
  output_of_.assign(saved_.size(), -1);
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
      fail(name() + ": a saved tensor " + to_string(saved_[i].sizes()) + " " +
           std::string(gradual::name(saved_[i].dtype())) + " was changed in place since (version " +
           std::to_string(saved_[i].version()) + ", saved at version " + std::to_string(versions_[i]) +
           "); clone() it first or write the functional form");
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
  if (std::exchange(function->applied_, true))
    fail(function->name() + ": the object was applied before; make a new one for each call");
  function->state_ = snapshot();
  std::vector<const Tensor*> refs;
  refs.reserve(inputs.size());
  for (const Tensor& t : inputs) refs.push_back(&t);
  const std::shared_ptr<Function>* outer = std::exchange(calling, &function);
  struct Restore {
    const std::shared_ptr<Function>* outer;
    ~Restore() { calling = outer; }
  } const restore{outer};
  const Outputs out =
      dispatch(OpId::custom, TensorRefs(refs.data(), static_cast<int>(refs.size())), CustomAttrs{function.get()}, loc);
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
