#include <cmath>
#include <limits>

#include "misuse.h"

using namespace gradual;
using namespace gradual::optim;

namespace test {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

Tensor weight(DType dtype = DType::f32) { return ones({2}, {.dtype = dtype, .requires_grad = true}); }
Tensor with_gradient(double value = 1, DType dtype = DType::f32) {
  Tensor w = weight(dtype);
  w.set_grad(full({2}, value, dtype));
  return w;
}
// A step after a change of the only group.
template <class F> Tensor step_after(F change) {
  Tensor w = with_gradient();
  SGD optimizer({w}, {.lr = 0.5, .momentum = 0.5});
  change(optimizer.param_groups()[0]);
  optimizer.step();
  return w;
}
template <class F> Tensor adam_after(F change) {
  Tensor w = with_gradient();
  Adam optimizer({w});
  change(optimizer.param_groups()[0]);
  optimizer.step();
  return w;
}
void scale_with(const GradScalerOptions& options) { GradScaler scaler(options); }
Tensor loss_of(const Tensor& w) { return sum(w * w); }

}  // namespace

Misuses optim_misuses() {
  return {
      // rates
      {"SGD with lr NaN", [] { SGD({weight()}, {.lr = NAN}); },
       "optimizer: lr nan is out of range; it must be at least 0 and finite"},
      {"SGD with a negative lr", [] { SGD({weight()}, {.lr = -0.1}); },
       "optimizer: lr -0.1 is out of range; it must be at least 0 and finite"},
      {"SGD with lr Inf", [] { SGD({weight()}, {.lr = kInfinite}); },
       "optimizer: lr inf is out of range; it must be at least 0 and finite"},
      {"SGD with momentum NaN", [] { SGD({weight()}, {.momentum = NAN}); },
       "optimizer: momentum nan is out of range; it must be in [0, 1)"},
      {"SGD with a negative momentum", [] { SGD({weight()}, {.momentum = -0.9}); },
       "optimizer: momentum -0.9 is out of range; it must be in [0, 1)"},
      {"SGD with momentum 2", [] { SGD({weight()}, {.momentum = 2}); },
       "optimizer: momentum 2 is out of range; it must be in [0, 1)"},
      {"SGD with momentum 1", [] { SGD({weight()}, {.momentum = 1}); },
       "optimizer: momentum 1 is out of range; it must be in [0, 1)"},
      {"SGD with dampening NaN", [] { SGD({weight()}, {.momentum = 0.9, .dampening = NAN}); },
       "optimizer: dampening nan is out of range; it must be in [0, 1)"},
      {"SGD with dampening 2", [] { SGD({weight()}, {.momentum = 0.9, .dampening = 2}); },
       "optimizer: dampening 2 is out of range; it must be in [0, 1)"},
      {"SGD with weight decay NaN", [] { SGD({weight()}, {.weight_decay = NAN}); },
       "optimizer: weight_decay nan is out of range; it must be at least 0 and finite"},
      {"SGD with a negative weight decay", [] { SGD({weight()}, {.weight_decay = -1}); },
       "optimizer: weight_decay -1 is out of range; it must be at least 0 and finite"},
      {"nesterov without momentum", [] { SGD({weight()}, {.nesterov = true}); },
       "SGD: nesterov needs a momentum above 0 and a dampening of 0"},
      {"nesterov with momentum NaN", [] { SGD({weight()}, {.momentum = NAN, .nesterov = true}); },
       "optimizer: momentum nan is out of range; it must be in [0, 1)"},
      {"nesterov with dampening", [] { SGD({weight()}, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}); },
       "SGD: nesterov needs a momentum above 0 and a dampening of 0"},
      {"Adam with lr NaN", [] { Adam({weight()}, {.lr = NAN}); },
       "optimizer: lr nan is out of range; it must be at least 0 and finite"},
      {"Adam with a negative lr", [] { Adam({weight()}, {.lr = -1}); },
       "optimizer: lr -1 is out of range; it must be at least 0 and finite"},
      {"Adam with beta1 1", [] { Adam({weight()}, {.beta1 = 1}); },
       "optimizer: beta1 1 is out of range; it must be in [0, 1)"},
      {"Adam with beta2 NaN", [] { Adam({weight()}, {.beta2 = NAN}); },
       "optimizer: beta2 nan is out of range; it must be in [0, 1)"},
      {"Adam with a negative beta2", [] { Adam({weight()}, {.beta2 = -0.1}); },
       "optimizer: beta2 -0.1 is out of range; it must be in [0, 1)"},
      {"Adam with a negative eps", [] { Adam({weight()}, {.eps = -1e-8}); },
       "optimizer: eps -1e-08 is out of range; it must be at least 0 and finite"},
      {"Adam with eps NaN", [] { Adam({weight()}, {.eps = NAN}); },
       "optimizer: eps nan is out of range; it must be at least 0 and finite"},
      {"AdamW with a negative weight decay", [] { AdamW({weight()}, {.weight_decay = -0.01}); },
       "optimizer: weight_decay -0.01 is out of range; it must be at least 0 and finite"},
      {"lr NaN set later", [] { return step_after([](ParamGroup& g) { g.lr = NAN; }); },
       "optimizer: lr nan is out of range; it must be at least 0 and finite"},
      {"a negative lr set later", [] { return step_after([](ParamGroup& g) { g.lr = -1; }); },
       "optimizer: lr -1 is out of range; it must be at least 0 and finite"},
      {"momentum 2 set later", [] { return step_after([](ParamGroup& g) { g.momentum = 2; }); },
       "optimizer: momentum 2 is out of range; it must be in [0, 1)"},
      {"weight decay NaN set later", [] { return step_after([](ParamGroup& g) { g.weight_decay = NAN; }); },
       "optimizer: weight_decay nan is out of range; it must be at least 0 and finite"},
      {"lr unset later", [] { return step_after([](ParamGroup& g) { g.lr.reset(); }); },
       "optimizer: lr of group 0 is unset; assign a number"},
      {"beta1 2 set later", [] { return adam_after([](ParamGroup& g) { g.beta1 = 2; }); },
       "optimizer: beta1 2 is out of range; it must be in [0, 1)"},
      {"eps NaN set later", [] { return adam_after([](ParamGroup& g) { g.eps = NAN; }); },
       "optimizer: eps nan is out of range; it must be at least 0 and finite"},
      {"a rate of NaN in a group", [] { SGD({ParamGroup{.params = {weight()}, .lr = NAN}}); },
       "optimizer: lr nan is out of range; it must be at least 0 and finite"},
      {"a rate of NaN in an added group",
       [] { SGD({weight()}).add_param_group({.params = {weight()}, .weight_decay = NAN}); },
       "optimizer: weight_decay nan is out of range; it must be at least 0 and finite"},
      // parameters
      {"no parameters", [] { SGD(std::vector<Tensor>{}); },
       "optimizer: it was given no parameters; a model lists what register_module and register_parameter"},
      {"an undefined parameter", [] { SGD({Tensor()}); },
       "optimizer: a parameter must be f64, f32, f16 or bf16, given none"},
      {"a parameter of integers", [] { SGD({arange(0, 3)}); },
       "optimizer: a parameter must be f64, f32, f16 or bf16, given i64"},
      {"a parameter of f8", [] { SGD({zeros({2}, DType::f8e5m2)}); },
       "optimizer: a parameter must be f64, f32, f16 or bf16, given f8e5m2"},
      {"a parameter that is a result", [] { SGD({weight() * 2}); },
       "optimizer: a parameter [2] is the result of an op; only leaves can be optimized"},
      {"one parameter twice",
       [] {
         const Tensor w = weight();
         SGD({w, w});
       },
       "optimizer: a parameter [2] is in a group already; a parameter belongs to one"},
      {"parameters that share memory",
       [] {
         const Tensor all = ones({4});
         Tensor a = all.narrow(0, 0, 3);
         Tensor b = all.narrow(0, 2, 2);
         SGD({a.set_requires_grad(), b.set_requires_grad()});
       },
       "optimizer: a parameter [2] shares memory with 'parameter 0' [3]: both would be updated at once;"},
      {"parameters that require no gradient",
       [] {
         SGD({ones({2}), ones({3})});
       },
       "optimizer: none of its 2 parameters requires a gradient; call set_requires_grad() first"},
      {"some parameters that require no gradient",
       [] {
         const Tensor w = with_gradient();
         const Tensor frozen = ones({2});
         SGD optimizer({w, frozen}, {.lr = 0.5});
         optimizer.step();
         return cat({w.detach(), frozen});
       },
       "= f32: 0.5 0.5 1 1"},
      {"other numbers of names and parameters",
       [] {
         SGD({ParamGroup{.params = {weight()}, .names = {"a", "b"}}});
       },
       "optimizer: a group has 1 parameters and 2 names"},
      {"a group edited behind the optimizer", [] { return step_after([](ParamGroup& g) { g.params.clear(); }); },
       "optimizer: 1 parameters were added, the groups now have 0; add parameters with add_param_group"},
      {"the master of a foreign tensor", [] { return SGD({weight()}).master(weight()); },
       "optimizer: the tensor [2] is not one of its parameters"},
      {"the master of an undefined tensor", [] { return SGD({weight()}).master(Tensor()); },
       "optimizer: the tensor (undefined) is not one of its parameters"},
      {"a parameter cast to f64 behind SGD",
       [] {
         nn::Linear m(1, 1, {.bias = false});
         nn::init::constant_(m.weight, 1);
         SGD optimizer(m.parameters(), {.lr = 0.5, .momentum = 0.5});
         for (int i = 0; i < 2; ++i) {
           m.weight.set_grad(ones_like(m.weight));
           optimizer.step();
           m.to(DType::f64);
         }
         return m.weight;
       },
       "= f64: -0.25"},
      {"a parameter cast to f64 behind Adam",
       [] {
         nn::Linear m(1, 1, {.bias = false});
         nn::init::constant_(m.weight, 1);
         Adam optimizer(m.parameters(), {.lr = 0.5, .eps = 0});
         for (int i = 0; i < 2; ++i) {
           m.weight.set_grad(ones_like(m.weight));
           optimizer.step();
           m.to(DType::f64);
         }
         return std::fabs(m.weight.item()) < 1e-6;  // two steps of 0.5 from 1
       },
       "= true"},
      {"a parameter cast to f64 behind masters",
       [] {
         nn::Linear m(1, 1, {.bias = false});
         nn::init::constant_(m.weight, 1);
         SGD optimizer(m.parameters(), {.lr = 0.5, .precision = {.update = LowPrecisionUpdate::masters}});
         m.to(DType::bf16);
         for (int i = 0; i < 2; ++i) {
           m.weight.set_grad(ones_like(m.weight));
           optimizer.step();
           m.to(DType::f64);
         }
         return m.weight;
       },
       "= f64: 0"},
      {"a parameter cast to integers", [] { weight().swap_data(arange(0, 2)); }, "= done"},
      // precision
      {"pure arithmetic with masters",
       [] { SGD({weight()}, {.precision = {.update = LowPrecisionUpdate::masters, .pure_arithmetic = true}}); },
       "optimizer: pure_arithmetic needs LowPrecisionUpdate::none, not masters"},
      {"moments of integers", [] { SGD({weight()}, {.precision = {.state_dtype = DType::i64}}); },
       "optimizer: state_dtype may be f64, f32, f16 or bf16, not i64"},
      {"moments by delayed scaling",
       [] {
         UpdateOptions precision;
         precision.moments[0] = Quantizer{.format = format("e4m3fn"), .scaling = DelayedScale{}};
         SGD({weight()}, {.momentum = 0.9, .precision = precision});
       },
       "optimizer: moments are kept as codes without delayed or learned scaling, zero points, Hadamard transform and "
       "pure_arithmetic"},
      // state
      {"the state of another optimizer", [] { SGD({weight()}).load_state_dict(Adam({weight()}).state_dict()); },
       "load_state_dict: the state of 'adam' does not fit 'sgd'"},
      {"an empty state", [] { SGD({weight()}).load_state_dict(StateDict()); },
       "state_dict: no entry \"kind\"; the state dict is empty"},
      {"the state of more groups",
       [] {
         SGD two({weight()});
         two.add_param_group({.params = {weight()}});
         SGD({weight()}).load_state_dict(two.state_dict());
       },
       "load_state_dict: the state has 2 groups, the optimizer 1"},
      {"the state of more parameters",
       [] {
         SGD({weight()}).load_state_dict(SGD({weight(), weight()}).state_dict());
       },
       "load_state_dict: a group of the state has 2 parameters, the optimizer's has 1"},
      {"a state with lr NaN",
       [] {
         StateDict state = SGD({weight()}).state_dict();
         state.set("groups.0.lr", NAN);
         SGD({weight()}).load_state_dict(state);
       },
       "optimizer: lr nan is out of range; it must be at least 0 and finite"},
      {"a state with moments of another shape",
       [] {
         StateDict state = Adam({weight()}).state_dict();
         state.set("params.0.exp_avg", ones({3}));
         Adam({weight()}).load_state_dict(state);
       },
       "load_state_dict: exp_avg of parameter 0 is [3] f32, the parameter is [2] f32"},
      {"a state with moments of integers",
       [] {
         StateDict state = Adam({weight()}).state_dict();
         state.set("params.0.exp_avg", ones({2}, DType::i64));
         Adam({weight()}).load_state_dict(state);
       },
       "load_state_dict: exp_avg of parameter 0 is [2] i64, the parameter is [2] f32"},
      {"a state with a negative step count",
       [] {
         StateDict state = Adam({weight()}).state_dict();
         state.set("params.0.steps", -1);
         Adam({weight()}).load_state_dict(state);
       },
       "state_dict: \"steps\" is the integer -1; an unsigned 64-bit integer was asked for"},
      // loss scaling
      {"a scale of 0", [] { scale_with({.init_scale = 0}); },
       "GradScaler: init_scale is 0; it must be from min_scale, 1.1754943508222875e-38, to max_scale,"},
      {"a scale of NaN", [] { scale_with({.init_scale = NAN}); },
       "GradScaler: init_scale is nan; it must be from min_scale, 1.1754943508222875e-38, to max_scale,"},
      {"a scale of Inf", [] { scale_with({.init_scale = kInfinite}); },
       "GradScaler: init_scale is inf; it must be from min_scale, 1.1754943508222875e-38, to max_scale,"},
      {"a negative scale", [] { scale_with({.init_scale = -1}); },
       "GradScaler: init_scale is -1; it must be from min_scale, 1.1754943508222875e-38, to max_scale,"},
      {"a scale that does not grow", [] { scale_with({.growth_factor = 1}); },
       "GradScaler: growth_factor is 1; it must be above 1 and finite"},
      {"a growth of NaN", [] { scale_with({.growth_factor = NAN}); },
       "GradScaler: growth_factor is nan; it must be above 1 and finite"},
      {"a scale that does not shrink", [] { scale_with({.backoff_factor = 1}); },
       "GradScaler: backoff_factor is 1; it must be between 0 and 1"},
      {"a scale that shrinks to 0", [] { scale_with({.backoff_factor = 0}); },
       "GradScaler: backoff_factor is 0; it must be between 0 and 1"},
      {"growth after no step", [] { scale_with({.growth_interval = 0}); },
       "GradScaler: growth_interval is 0; it must be at least 1"},
      {"a hysteresis of 0", [] { scale_with({.hysteresis = 0}); },
       "GradScaler: hysteresis is 0; it must be at least 1"},
      {"a smallest scale above the largest", [] { scale_with({.min_scale = 8, .max_scale = 4}); },
       "GradScaler: max_scale is 4; it must be finite and not below min_scale"},
      {"a smallest scale of NaN", [] { scale_with({.min_scale = NAN}); },
       "GradScaler: min_scale is nan; it must be at least 2^-126 (its inverse is finite)"},
      {"a scaler's step before scale()",
       [] {
         SGD optimizer({with_gradient()});
         GradScaler().step(optimizer);
       },
       "GradScaler: step: no scale yet: scale(loss) was not used earlier in the iteration"},
      {"a scaler's step without gradients",
       [] {
         const Tensor w = weight();
         SGD optimizer({w});
         GradScaler scaler;
         scaler.scale(loss_of(w));
         scaler.step(optimizer);
       },
       "GradScaler: step: no inf checks were recorded for this optimizer: no parameter has a gradient; call"},
      {"a scaler's update before step()", [] { GradScaler().update(); },
       "GradScaler: update: no scale yet: scale(loss) was not used earlier in the iteration"},
      {"unscale_ twice",
       [] {
         const Tensor w = weight();
         SGD optimizer({w});
         GradScaler scaler;
         scaler.scale(loss_of(w)).backward();
         scaler.unscale_(optimizer);
         scaler.unscale_(optimizer);
       },
       "GradScaler: unscale_() has already been called on this optimizer since the last update()"},
      {"unscale_ of f16 without masters",
       [] {
         const Tensor w = weight(DType::f16);
         SGD optimizer({w});
         GradScaler scaler({.init_scale = 2});
         scaler.scale(loss_of(w)).backward();
         scaler.unscale_(optimizer);
       },
       "attempting to unscale FP16 gradients: parameter 0 [2] needs .update = LowPrecisionUpdate::masters"},
      {"a scaled undefined loss", [] { return GradScaler().scale(Tensor()); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"a new scale of NaN",
       [] {
         const Tensor w = weight();
         SGD optimizer({w});
         GradScaler scaler;
         scaler.scale(loss_of(w)).backward();
         scaler.step(optimizer);
         scaler.update(NAN);
       },
       "GradScaler: update: the new scale nan does not lie between min_scale, 1.1754943508222875e-38, and"},
      // clipping
      {"a norm clipped to NaN", [] { return clip_grad_norm_({with_gradient()}, NAN); },
       "clip_grad_norm_: max_norm must be at least 0 and p above 0, given nan and 2"},
      {"a norm clipped to -1", [] { return clip_grad_norm_({with_gradient()}, -1); },
       "clip_grad_norm_: max_norm must be at least 0 and p above 0, given -1 and 2"},
      {"a norm clipped to Inf", [] { return clip_grad_norm_({with_gradient(0)}, kInfinite); }, "= 0"},
      {"a clipped norm of p = 0", [] { return clip_grad_norm_({with_gradient()}, 1, {.p = 0}); },
       "clip_grad_norm_: max_norm must be at least 0 and p above 0, given 1 and 0"},
      {"a clipped norm of p = NaN", [] { return clip_grad_norm_({with_gradient()}, 1, {.p = NAN}); },
       "clip_grad_norm_: max_norm must be at least 0 and p above 0, given 1 and nan"},
      {"a norm of NaN that is refused",
       [] { return clip_grad_norm_({with_gradient(NAN)}, 1, {.error_if_nonfinite = true}); },
       "clip_grad_norm_: the norm of the gradients is nan, which error_if_nonfinite refuses"},
      {"a norm without gradients", [] { return clip_grad_norm_({weight()}, 1); }, "= 0"},
      {"a norm of an undefined parameter", [] { return clip_grad_norm_({Tensor()}, 1); }, "= 0"},
      {"values clipped to NaN", [] { clip_grad_value_({with_gradient()}, NAN); },
       "clip_grad_value_: the limit must be at least 0, given nan"},
      {"values clipped to -1", [] { clip_grad_value_({with_gradient()}, -1); },
       "clip_grad_value_: the limit must be at least 0, given -1"},
      // schedules
      {"step_decay every 0 steps", [] { return step_decay(0)(1); }, "step_decay: needs at least one step, given 0"},
      {"step_decay by NaN", [] { return step_decay(1, NAN)(1); }, "= nan"},
      {"step_decay by a negative factor", [] { return step_decay(1, -1)(1); }, "= -1"},
      {"multi_step by NaN", [] { return multi_step({1}, NAN)(1); }, "= nan"},
      {"cosine of no step", [] { return cosine(0)(1); }, "cosine: needs at least one step, given 0"},
      {"cosine to a negative factor", [] { return cosine(2, -1)(2); }, "= -1"},
      {"warmup of -1 steps", [] { return linear_warmup(-1)(1); }, "linear_warmup: needs at least one step, given -1"},
      {"warmup from NaN", [] { return linear_warmup(2, NAN)(0); }, "= nan"},
      {"a chain of a null schedule", [] { return chain(nullptr, 1, cosine(2))(0); },
       "chain: the first schedule is null"},
      {"a chain of a negative number of steps", [] { return chain(cosine(2), -1, cosine(2))(0); },
       "chain: -1 steps; allowed are 0 and more"},
      {"a scheduler without schedule",
       [] {
         SGD o({weight()});
         Scheduler(o, nullptr);
       },
       "Scheduler: the schedule is null"},
      {"a schedule that gives NaN",
       [] {
         SGD optimizer({with_gradient()});
         Scheduler(optimizer, [](std::int64_t) { return NAN; });
         optimizer.step();
       },
       "optimizer: lr nan is out of range; it must be at least 0 and finite"},
      {"a scheduler's state of more groups",
       [] {
         SGD one({weight()});
         SGD two({weight()});
         two.add_param_group({.params = {weight()}});
         Scheduler(one, cosine(2)).load_state_dict(Scheduler(two, cosine(2)).state_dict());
       },
       "load_state_dict: the schedule has 2 groups, the optimizer 1"},
      {"a scheduler's state with a negative step",
       [] {
         SGD optimizer({weight()});
         Scheduler s(optimizer, cosine(2));
         StateDict state = s.state_dict();
         state.set("steps", -5);
         s.load_state_dict(state);
       },
       "state_dict: \"steps\" is the integer -5; an unsigned 64-bit integer was asked for"},
  };
}

}  // namespace test
