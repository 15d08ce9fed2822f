#include "function.h"

#include <algorithm>

#include "../core/support/throwf.h"
#include "../core/tensor/modes.h"
#include "rule.h"

namespace gradual {

// True if `from` broadcasts to `to`, so that a gradient of shape `to` can be summed to `from`.
static bool expands_to(const Shape& from, const Shape& to) {
  const auto fits = [](std::int64_t own, std::int64_t wide) { return own == wide || own == 1; };
  return from.size() <= to.size() && std::ranges::equal(from, to.last(from.size()), fits);
}

// The kernel and the rule of the op `custom`.
struct FunctionColumns {
  static void forward(const OpCall& call, Outputs& out) {
    Function& f = *call.get<CustomAttrs>().function;
    std::vector<Tensor> inputs;
    for (int i = 0; i < call.inputs.size(); ++i) {
      inputs.push_back(call[i]);
      if (needs_grad(call[i])) f.needs_ |= input_bit(i);
    }
    const StageScope amp(chain().amp, f.amp_dtype() ? nullptr : f.state_.chain.amp);
    const std::vector<Tensor> results = f.forward(inputs);
    if (results.empty() || results.size() > kMaxOutputs)
      throwf("{}: forward returned {} tensors; allowed are 1 to {}", f.name(), results.size(), kMaxOutputs);
    f.outputs_ = static_cast<int>(results.size());
    for (int i = 0; i < f.outputs_; ++i) {
      // An input returned unchanged, or a tensor returned twice or saved, gets a new handle with its own history.
      const Tensor& y = results[static_cast<std::size_t>(i)];
      if (!y.defined()) throw_error(f.name() + ": forward returned an undefined tensor");
      bool taken = y.requires_grad();
      for (std::size_t k = 0; k < f.saved_.size(); ++k) {
        if (!f.saved_[k].is_same(y)) continue;
        f.output_of_[k] = i;
        taken = true;
      }
      for (const Tensor& x : inputs) taken = taken || x.is_same(y);
      for (int k = 0; k < i; ++k) taken = taken || results[static_cast<std::size_t>(k)].is_same(y);
      out[i] = taken ? y.detach() : y;
    }
  }

  static void backward(const RuleContext& c) {
    Function& f = *c.node().function;
    const Scoped modes_around(f.modes_of_backward_, modes());
    const ThreadStateScope state(f.state_);
    // The sum over the parts of a batch is that of the thread that runs backward; forward's may be gone.
    modes().sum_over_parts = f.modes_of_backward_.sum_over_parts;
    modes().segment = Segment::none;
    context().phase = Phase::backward;
    context().line = c.node().where;
    const Replaced* const replaced = f.replaces();
    context().backward_of = replaced ? to_string(replaced->op).data() : intern(f.name());
    if (f.amp_dtype()) chain().amp = nullptr;
    chain().autograd = c.create_graph() ? default_autograd() : nullptr;
    std::vector<Tensor> grads;
    grads.reserve(kMaxOutputs);
    for (int i = 0; i < f.outputs_; ++i) grads.push_back(c.grad(i));
    std::vector<Tensor> saved = f.saved_;
    for (std::size_t k = 0; k < saved.size() && c.create_graph(); ++k) {
      if (f.output_of_[k] < 0) continue;  // saved outputs are reattached to the tape
      saved[k] = detached(saved[k]);
      set_history(saved[k], Ref<Node>::share(&c.node()), static_cast<std::uint32_t>(f.output_of_[k]));
    }
    const Scoped on_tape(f.saved_, std::move(saved));
    std::vector<Tensor> results = f.backward(grads);
    if (static_cast<int>(results.size()) != c.inputs())
      throwf("{}: backward returned {} gradients for {} inputs", f.name(), results.size(), c.inputs());
    for (int i = 0; i < c.inputs(); ++i) {
      Tensor& g = results[static_cast<std::size_t>(i)];
      // The engine sums a broadcast gradient and casts its dtype, as for built-in rules.
      if (g.defined() && c.needs(i) && !(g.is_floating() && expands_to(c.sizes(i), g.sizes())))
        throwf("{}: backward gave input {} a gradient {}; the input is {}", f.name(), i, describe(g),
               kind_of(c.sizes(i), c.dtype(i)));
      c.set(i, std::move(g));
    }
  }
};

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
  if (released_) throw_error(name() + ": its saved tensors are freed; pass retain_graph to the first backward");
  for (std::size_t i = 0; i < saved_.size(); ++i)
    if (saved_[i].defined() && saved_[i].version() != versions_[i]) fail_changed(name(), saved_[i], versions_[i]);
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
  if (std::exchange(not_null(function, "apply: the function")->applied_, true))
    throw_error(function->name() + ": the object was applied before; make a new one for each call");
  function->state_ = snapshot();
  const std::vector<const Tensor*> refs = pointers_to(inputs);
  const CustomAttrs attrs{function.get(), chain().observe ? intern(function->name()) : "", function->replaces()};
  const Outputs out = dispatch(OpId::custom, TensorRefs(refs.data(), static_cast<int>(refs.size())), attrs, loc);
  return {out.values, out.values + function->outputs_};
}

void register_custom() {
  columns().cpu[static_cast<int>(OpId::custom)] = FunctionColumns::forward;
  columns().cuda[static_cast<int>(OpId::custom)] = FunctionColumns::forward;
  set_rule(OpId::custom, {}, FunctionColumns::backward).differentiable = 7;
}

}  // namespace gradual
