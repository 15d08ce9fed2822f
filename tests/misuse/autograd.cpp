#include <cmath>
#include <utility>

#include "misuse.h"

using namespace gradual;

namespace test {
namespace {

Tensor leaf() { return ones({2}, {.requires_grad = true}); }

// A user's function that returns what it is told to.
struct Says : Function {
  std::vector<Tensor> ahead, back;
  // Kept, they would hold the graph, which holds the function.
  std::vector<Tensor> forward(const std::vector<Tensor>&) override { return std::exchange(ahead, {}); }
  std::vector<Tensor> backward(const std::vector<Tensor>&) override { return back; }
  std::string name() const override { return "says"; }
};
std::vector<Tensor> run(const std::vector<Tensor>& ahead, const std::vector<Tensor>& back) {
  const auto f = std::make_shared<Says>();
  f->ahead = ahead;
  f->back = back;
  std::vector<Tensor> y = apply(f, {leaf()});
  if (y[0].requires_grad()) sum(y[0]).backward();
  return y;
}

}  // namespace

Misuses autograd_misuses() {
  return {
      {"integers that require a gradient", [] { arange(0, 3).set_requires_grad(); },
       "set_requires_grad: only f64, f32, f16 and bf16 tensors carry gradients, this one is i64"},
      {"set_requires_grad(false) on a result", [] { (leaf() * 2).set_requires_grad(false); },
       "set_requires_grad(false): the tensor is the result of mul"},
      {"backward of two elements", [] { (leaf() * 2).backward(); },
       "backward: an output of shape [2] needs a gradient of that shape; only one-element outputs start"},
      {"backward of a tensor without gradient", [] { ones({1}).backward(); },
       "backward: the output [1] does not depend on any tensor that requires grad"},
      {"backward by a gradient of another shape", [] { (leaf() * 2).backward(ones({3})); },
       "backward: a gradient [3] f32 for an output [2] f32"},
      {"backward by integers", [] { (leaf() * 2).backward(ones({2}, DType::i64)); },
       "backward: a gradient [2] i64 for an output [2] f32"},
      {"backward by a gradient of f64",
       [] {
         const Tensor x = leaf();
         (x * 2).backward(ones({2}, DType::f64));
         return x.grad();
       },
       "= f32: 2 2"},
      {"backward twice",
       [] {
         const Tensor x = leaf();
         const Tensor y = sum(x * x);
         y.backward();
         y.backward();
       },
       "its saved tensors are freed; pass retain_graph to the first backward"},
      {"backward of nothing", [] { autograd::backward({}); }, "= done"},
      {"gradients of an undefined output", [] { return autograd::grad({Tensor()}, {leaf()}).at(0); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"gradients for an undefined input", [] { return autograd::grad({sum(leaf())}, {Tensor()}).at(0); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"gradients for an input that is not used", [] { return autograd::grad({sum(leaf())}, {leaf()}).at(0); },
       "grad: input 0 [2] was not used for the outputs; pass allow_unused for an undefined gradient"},
      {"gradients for an input without gradient", [] { return autograd::grad({sum(leaf())}, {ones({2})}).at(0); },
       "grad: an input [2] does not require grad"},
      {"gradients by too many weights",
       [] {
         return autograd::grad({sum(leaf())}, {leaf()}, {ones({}), ones({})}).at(0);
       },
       "backward: 1 outputs and 2 gradients"},
      {"a saved tensor written before backward",
       [] {
         const Tensor x = leaf();
         const Tensor y = x * 2;
         const Tensor z = sum(y * y);
         y.add_(1);
         z.backward();
       },
       "a saved tensor [2] f32 was changed in place since (version 1, saved at version 0); clone() it first"},
      {"a gradient of another shape", [] { leaf().set_grad(ones({3})); },
       "set_grad: a gradient [3] f32 on cpu for a tensor [2] f32 on cpu; both are floating"},
      {"a gradient of another dtype, which an optimizer reads",
       [] {
         Tensor x = leaf();
         x.set_grad(full({2}, 0.5, DType::f64));
         optim::SGD({x}, {.lr = 1}).step();
         return x;
       },
       "= f32: 0.5 0.5"},
      {"a half gradient of an f32 tensor",
       [] {
         const Tensor x = leaf();
         x.set_grad(full({2}, 0.5, DType::bf16));
         return x.grad();
       },
       "= bf16: 0.5 0.5"},
      {"an integer gradient", [] { leaf().set_grad(ones({2}, DType::i64)); },
       "set_grad: a gradient [2] i64 on cpu for a tensor [2] f32 on cpu; both are floating"},
      {"a gradient of integers", [] { arange(0, 2).set_grad(ones({2}, DType::i64)); },
       "set_grad: a gradient [2] i64 on cpu for a tensor [2] i64 on cpu; both are floating"},
      {"no gradient",
       [] {
         const Tensor x = leaf();
         x.set_grad(Tensor());
         return x.grad();
       },
       "= undefined"},
      {"a null hook", [] { leaf().register_hook(nullptr); }, "register_hook: the hook is null"},
      {"a hook on a tensor without gradient", [] { ones({2}).register_hook([](const Tensor& g) { return g; }); },
       "register_hook: the tensor does not require grad"},
      {"a hook that returns another shape",
       [] {
         const Tensor x = leaf();
         x.register_hook([](const Tensor&) { return ones({3}); });
         sum(x).backward();
       },
       "a hook on leaf returned [3] f32; the gradient is [2] f32"},
      {"a hook that returns another dtype",
       [] {
         const Tensor x = leaf();
         x.register_hook([](const Tensor&) { return ones({2}, DType::i64); });
         sum(x).backward();
         return x.grad();
       },
       "a hook on leaf returned [2] i64; the gradient is [2] f32"},
      {"a hook of an unknown number", [] { leaf().remove_hook(77); }, "= done"},
      {"a null function applied", [] { apply(nullptr, {leaf()}); }, "apply: the function is null"},
      {"a function applied twice",
       [] {
         const auto f = std::make_shared<Says>();
         f->ahead = {ones({2})};
         apply(f, {leaf()});
         apply(f, {leaf()});
       },
       "says: the object was applied before; make a new one for each call"},
      {"a function of no output", [] { run({}, {}); }, "says: forward returned 0 tensors; allowed are 1 to 3"},
      {"a function of four outputs",
       [] {
         run({ones({1}), ones({1}), ones({1}), ones({1})}, {});
       },
       "says: forward returned 4 tensors; allowed are 1 to 3"},
      {"a function of an undefined output", [] { run({Tensor()}, {}); }, "says: forward returned an undefined tensor"},
      {"a function with too few gradients", [] { run({ones({2})}, {}); },
       "says: backward returned 0 gradients for 1 inputs"},
      {"a function with a gradient of another shape", [] { run({ones({2})}, {ones({5})}); },
       "says: backward gave input 0 a gradient [5] f32; the input is [2] f32"},
      {"a function with a gradient of integers", [] { run({ones({2})}, {ones({2}, DType::i64)}); },
       "says: backward gave input 0 a gradient [2] i64; the input is [2] f32"},
      {"a function of an undefined input",
       [] {
         const auto f = std::make_shared<Says>();
         f->ahead = {ones({2})};
         return apply(f, {Tensor()}).at(0);
       },
       "= f32: 1 1"},
      {"a null checkpointed segment", [] { checkpoint(std::function<Tensor(const Tensor&)>(), leaf()); },
       "checkpoint: the function is null"},
      {"a null checkpointed segment of lists", [] { checkpoint(SegmentFn(), {leaf()}); },
       "checkpoint: the function is null"},
      {"a checkpointed segment of no output",
       [] { checkpoint([](const std::vector<Tensor>&) { return std::vector<Tensor>(); }, {leaf()}); },
       "checkpoint: forward returned 0 tensors; allowed are 1 to 3"},
      {"gradcheck in f32", [] { return autograd::gradcheck([](const auto& in) { return in; }, {leaf()}).ok; },
       "gradcheck: input 0 is f32; differences need f64"},
      {"gradcheck without a gradient",
       [] { return autograd::gradcheck([](const auto& in) { return in; }, {ones({1}, DType::f64)}).ok; },
       "gradcheck: no input requires a gradient"},
      {"gradcheck of a null function",
       [] { return autograd::gradcheck(nullptr, {ones({1}, {.dtype = DType::f64, .requires_grad = true})}).ok; },
       "gradcheck: the function is null"},
      {"gradcheck with an eps of 0",
       [] {
         return autograd::gradcheck([](const auto& in) { return in; },
                                    {ones({1}, {.dtype = DType::f64, .requires_grad = true})}, {.eps = 0})
             .ok;
       },
       "gradcheck: eps is 0; it must be positive and finite"},
      {"gradcheck with an eps of NaN",
       [] {
         return autograd::gradcheck([](const auto& in) { return in; },
                                    {ones({1}, {.dtype = DType::f64, .requires_grad = true})}, {.eps = NAN})
             .ok;
       },
       "gradcheck: eps is nan; it must be positive and finite"},
      {"the tape of a constant", [] { return Tape::of(ones({1})).to_string(); },
       "Tape::of: the tensor [1] does not require grad, nothing is recorded"},
      {"the tape of an undefined tensor", [] { return Tape::of(Tensor()).to_string(); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"a step of backward beyond the last",
       [] {
         const Tensor x = leaf();
         const Tensor y = sum(x);
         Tape::Stepper s(y);
         while (!s.done()) s.next();
         s.next();
       },
       "Tape::Stepper: the backward is done; ask done() first"},
      {"NaN under anomaly mode",
       [] {
         const AnomalyMode watch;
         return log(full({1}, -1));
       },
       " the first non-finite value, at [0]"},
  };
}

}  // namespace test
