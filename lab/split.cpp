#include "split.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "../amp/outside_amp.h"
#include "../amp/whole_operands.h"
#include "../autograd/activation_checkpoint.h"
#include "../autograd/function.h"
#include "../autograd/grad_mode.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "../nn/attention.h"
#include "split_sum.h"

namespace gradual::lab {
namespace {

// x [.., in] times a weight, as the split takes it apart: in f32, or in the dtype of wider operands.
struct Product {
  OpId op = OpId::linear;
  Tensor x, weight;
  Tensor bias = {};
  Conv2dOptions conv = {};
  DType result = DType::f32;
  bool below_amp = false;  // operands have been cast as Amp does
  SourceLocation where;

  // The dims of the weight: [out, in ..] of linear and conv2d, [in, out] of matmul.
  int out_dim() const { return op == OpId::matmul ? 1 : 0; }
  int in_dim() const { return 1 - out_dim(); }
  // That of x and of the result which has the features, or channels.
  int feature_dim() const { return op == OpId::conv2d ? 1 : -1; }
};

// Passes a tensor on, and gives its gradient to the operands of which parts are made.
struct KeepGradient final : Function {
  explicit KeepGradient(std::shared_ptr<amp::WholeOperands> w) : whole(std::move(w)) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override { return {inputs.front()}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    whole->dy = grads.front().detach();
    return {grads.front()};
  }
  std::string name() const override { return "gradient of all parts"; }

  std::shared_ptr<amp::WholeOperands> whole;
};

// The result of all parts as an op of its own: a recipe that rounds the results of ops (amp/quantized_results.h) rounds
// it.
struct WholeResult final : Function {
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override { return {inputs.front()}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override { return {grads.front()}; }
  std::string name() const override { return "result of all parts"; }
};

bool is_or_is_within(std::string_view path, const std::string& module) {
  return path == module || path.starts_with(module + ".");
}

bool keeps_histories(const amp::Quantization& q) {
  if (q.attention && amp::has_delayed_scales(*q.attention)) return true;
  return std::ranges::any_of(amp::kQuantizerFields, [&](const amp::QuantizerField& field) {
    const std::optional<Quantizer>& quantizer = q.*field.quantizer;
    return quantizer && has_kept_scale(quantizer->scaling);
  });
}

// Partial sums of half operands are f32: the operands are rounded as Amp does, and widened.
Product product_of(const OpCall& call, const amp::OutsideAmp& outside) {
  Product p{.op = call.op, .x = call[0], .weight = call[1], .where = call.where};
  if (call.inputs.size() > 2) p.bias = call[2];
  if (call.op == OpId::conv2d) p.conv = call.get<ConvAttrs>();
  p.result = promote(outside.operand_dtype(call.op, p.x), outside.operand_dtype(call.op, p.weight));
  if (!is_half(p.result)) return p;
  for (Tensor* t : {&p.x, &p.weight, &p.bias})
    if (t->defined()) *t = cast(cast(*t, p.result), DType::f32);
  p.below_amp = is_half(outside.operand_dtype(call.op, p.x));
  return p;
}

Tensor multiply(const Product& p, const amp::OutsideAmp& outside, const Tensor& x, const Tensor& weight,
                const Tensor& bias) {
  const StageScope stage(chain().amp, p.below_amp ? nullptr : outside.amp.get());
  if (p.op == OpId::conv2d) return conv2d(x, weight, bias, p.conv, p.where);
  return p.op == OpId::linear ? linear(x, weight, bias, p.where) : matmul(x, weight, p.where);
}

Tensor with_bias(const Product& p, const Tensor& y) {
  if (!p.bias.defined()) return y;
  return add(y, p.op == OpId::conv2d ? p.bias.reshape({-1, 1, 1}) : p.bias);
}

// One for each part; undefined tensors for an undefined one.
std::vector<Tensor> copies_or_none(const Tensor& t, const Split& split) {
  return t.defined() ? copies_of(t, split.parts, split.exchange)
                     : std::vector<Tensor>(static_cast<std::size_t>(split.parts));
}

// Ops in the parts of a split.
class Parts {
 public:
  // outside: the stage, below which parts run.
  Parts(const Split& split, const amp::OutsideAmp& outside) : split_(split), outside_(outside) {}

  Outputs in_columns(const OpCall& call) const {
    const StageScope inside(chain().amp, outside_.amp.get());
    const Product p = product_of(call, outside_);
    check_ungrouped(call, p);
    const std::int64_t in = p.weight.size(p.in_dim());
    const std::int64_t out = p.weight.size(p.out_dim());
    // q, k and v of a packed projection are split each.
    const bool packed = split_.kind == SplitKind::heads && out == 3 * in;
    const std::int64_t groups = packed ? 3 : 1;
    check_divides(call, out / groups, "output features");
    // Those of a part, [groups, each] of them.
    const auto features = [&](const Tensor& t, int dim, int i) {
      if (groups == 1 || !t.defined()) return t.defined() ? part(t, dim, i) : t;
      std::vector<Tensor> all;
      for (int g = 0; g < groups; ++g) all.push_back(part(narrow(t, dim, g * out / groups, out / groups), dim, i));
      return cat(all, dim);
    };
    return multiplied(call, p, [&] {
      const std::vector<Tensor> x = copies_of(p.x, split_.parts, split_.exchange);
      std::vector<Tensor> ys;
      for (int i = 0; i < split_.parts; ++i)
        ys.push_back(multiply(p, outside_, x[static_cast<std::size_t>(i)], features(p.weight, p.out_dim(), i),
                              features(p.bias, 0, i)));
      if (groups == 1) return cat(ys, p.feature_dim());
      std::vector<Tensor> ordered;
      const std::int64_t each = out / groups / split_.parts;
      for (int g = 0; g < groups; ++g)
        for (const Tensor& y : ys) ordered.push_back(narrow(y, -1, g * each, each));
      return cat(ordered, -1);
    });
  }

  Outputs in_rows(const OpCall& call) const {
    const StageScope inside(chain().amp, outside_.amp.get());
    const Product p = product_of(call, outside_);
    check_ungrouped(call, p);
    check_divides(call, p.weight.size(p.in_dim()), "input features");
    return multiplied(call, p, [&] {
      std::vector<Tensor> sums;
      for (int i = 0; i < split_.parts; ++i)
        sums.push_back(multiply(p, outside_, part(p.x, p.feature_dim(), i), part(p.weight, p.in_dim(), i), {}));
      return with_bias(p, summed(sums, split_.exchange));
    });
  }

  Outputs product_of_tokens(const OpCall& call) const {
    check_tokens(call);
    return product_along(call, -2);
  }
  Outputs norm_of_tokens(const OpCall& call) const {
    check_tokens(call);
    return norm_along(call, call[0].dim() - 2);
  }
  Outputs product_of_samples(const OpCall& call) const {
    check_samples(call);
    return product_along(call, 0);
  }
  Outputs norm_of_samples(const OpCall& call) const {
    check_samples(call);
    return norm_along(call, 0);
  }

  Outputs in_heads(const OpCall& call) const {
    const StageScope inside(chain().amp, outside_.amp.get());
    check_divides(call, call[0].dim() < 3 ? 1 : call[0].size(-3), "heads");
    if (call.get<AttentionAttrs>().dropout > 0)
      throwf("{}: dropout of attention is not emulated: parts would repeat its mask", name_of(call));
    const Tensor& mask = call[3];
    const bool mask_has_heads = mask.defined() && mask.dim() >= 3 && mask.size(-3) > 1;
    std::vector<Tensor> ys;
    for (int i = 0; i < split_.parts; ++i) {
      std::vector<Tensor> inputs;
      for (int k = 0; k < 3; ++k) inputs.push_back(part(call[k], -3, i));
      inputs.push_back(mask_has_heads ? part(mask, -3, i) : mask);
      const std::vector<const Tensor*> refs = pointers_to(inputs);
      ys.push_back(dispatch1(call.op, TensorRefs(refs.data(), 4), *call.attrs, call.where));
    }
    return {{cat(ys, -3)}};
  }

 private:
  // Each part has some rows of x along this dim, which is none of features.
  Outputs product_along(const OpCall& call, int dim) const {
    const StageScope inside(chain().amp, outside_.amp.get());
    const Product p = product_of(call, outside_);
    return multiplied(call, p, [&] {
      const std::vector<Tensor> weights = copies_of(p.weight, split_.parts, split_.exchange);
      const std::vector<Tensor> biases = copies_or_none(p.bias, split_);
      std::vector<Tensor> ys;
      for (int i = 0; i < split_.parts; ++i) {
        const auto k = static_cast<std::size_t>(i);
        ys.push_back(multiply(p, outside_, part(p.x, dim, i), weights[k], biases[k]));
      }
      return cat(ys, dim);
    });
  }

  Outputs norm_along(const OpCall& call, int dim) const {
    const StageScope inside(chain().amp, outside_.amp.get());
    if (call.get<NormAttrs>().dims != 1) throwf("{}: it is over more than the last dim", name_of(call));
    std::vector<std::vector<Tensor>> parameters;
    for (int i = 1; i < call.inputs.size(); ++i) parameters.push_back(copies_or_none(call[i], split_));
    std::vector<Tensor> results[kMaxOutputs];
    for (int i = 0; i < split_.parts; ++i) {
      std::vector<Tensor> inputs{part(call[0], dim, i)};
      for (const std::vector<Tensor>& copies : parameters) inputs.push_back(copies[static_cast<std::size_t>(i)]);
      const std::vector<const Tensor*> refs = pointers_to(inputs);
      const Outputs out = dispatch(call.op, TensorRefs(refs.data(), call.inputs.size()), *call.attrs, call.where);
      for (int k = 0; k < kMaxOutputs; ++k)
        if (out[k].defined()) results[k].push_back(out[k]);
    }
    Outputs all;
    for (int k = 0; k < kMaxOutputs; ++k)
      if (!results[k].empty()) all[k] = cat(results[k], dim);
    return all;
  }

  std::string name_of(const OpCall& call) const {
    return fmt::format("split {}={}: layer '{}' ({})", to_string(split_.kind), split_.parts, context().module,
                       to_string(call.op));
  }
  void check_divides(const OpCall& call, std::int64_t size, const char* what) const {
    if (size % split_.parts != 0) throwf("{}: {} {} are not a multiple of {}", name_of(call), size, what, split_.parts);
  }
  void check_ungrouped(const OpCall& call, const Product& p) const {
    if (p.conv.groups != 1)
      throwf("{}: it has {} groups of channels, which parts would cut; leave it whole", name_of(call), p.conv.groups);
  }
  void check_samples(const OpCall& call) const {
    if (call[0].dim() < 2) throwf("{}: an input {} has no samples", name_of(call), to_string(call[0].sizes()));
    check_divides(call, call[0].size(0), "samples");
  }
  // Part i of a dim.
  Tensor part(const Tensor& t, int dim, int i) const {
    const std::int64_t each = t.size(dim) / split_.parts;
    return narrow(t, dim, i * each, each);
  }

  // Runs f, which multiplies the parts, and gives them the operands of which they are parts.
  template <class F> Outputs multiplied(const OpCall& call, const Product& p, const F& f) const {
    Tensor y;
    if (split_.scales == SplitScales::own) {
      y = f();
    } else {
      const auto all = std::make_shared<amp::WholeOperands>();
      all->x = p.x.detach();
      // Of the parameter, whose module's histories these are.
      all->weight = (p.op == OpId::matmul ? call[1].transpose(0, 1) : call[1]).detach();
      const amp::WholeOperandsScope scope(all);
      y = f();
      if (grad_enabled()) y = gradual::apply(std::make_shared<KeepGradient>(all), {y}).front();
    }
    return {{cast(y, p.result)}};
  }

  void check_tokens(const OpCall& call) const {
    if (call[0].dim() < 3)
      throwf("{}: an input {} has no tokens; sequences are [batch, tokens, features]", name_of(call),
             to_string(call[0].sizes()));
    check_divides(call, call[0].size(-2), "tokens");
  }

  const Split& split_;
  const amp::OutsideAmp& outside_;
};

template <class E> E value_named(std::string_view what, std::string_view name) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::size(kEnumNames<E>); ++i) {
    if (kEnumNames<E>[i] == name) return static_cast<E>(i);
    names.emplace_back(kEnumNames<E>[i]);
  }
  throwf("{} '{}'; allowed are {}{}", what, name, join(names), did_you_mean(name, names));
}

}  // namespace

Split split_from_name(std::string_view text) {
  const std::size_t sign = text.find('=');
  const std::string_view number = sign == std::string_view::npos ? "" : text.substr(sign + 1);
  Split split{.kind = value_named<SplitKind>("split", text.substr(0, sign))};
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), split.parts);
  if (error != std::errc() || end != number.data() + number.size() || split.parts < 1)
    throwf("split '{}': '{}' parts; write {}=N with N of at least 1", text, number, to_string(split.kind));
  return split;
}

SplitScales split_scales_from_name(std::string_view text) { return value_named<SplitScales>("split-scales", text); }

std::string describe(const Split& s) {
  const std::string format = s.exchange.quantizer ? describe(*s.exchange.quantizer) : "f32";
  std::string text =
      fmt::format("{}={}; scales {}; exchange {}", to_string(s.kind), s.parts, to_string(s.scales), format);
  if (s.exchange.quantizer) text += fmt::format(", {}", to_string(s.exchange.algorithm));
  if (!s.except.empty()) text += fmt::format("; {} whole", join(s.except));
  return text;
}

void check_valid(const Split& split, const std::optional<amp::Quantization>& quantization) {
  if (split.parts < 1) throwf("split {}: {} parts; at least 1 is allowed", to_string(split.kind), split.parts);
  check_exchange(split.exchange);
  if (split.parts > 1 && split.scales == SplitScales::own && quantization && keeps_histories(*quantization))
    throwf(
        "split {}={}: the recipe has scales from histories of amaxes, and parts have no histories of their own; "
        "let the scales be agreed, or take a recipe with current scales",
        to_string(split.kind), split.parts);
}

struct SplitScope::State {
  Split split;
  std::set<std::string, std::less<>> attention;           // modules that are nn::MultiheadAttention
  std::set<std::string, std::less<>> output_projections;  // their out_proj
  Tensor root_projection;                                 // of q, k and v, where the model itself is one
  SplitWatcher* watcher;
  std::int64_t ops = 0;
};

// Tells a watcher where an op's backward begins: the gradient of its result is there.
struct SplitScope::Result final : Function {
  explicit Result(std::shared_ptr<const State> s) : state(std::move(s)) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override { return {inputs.front()}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    if (state->watcher) state->watcher->backward_begins();
    return grads;
  }
  std::string name() const override { return "result of a split op"; }

  std::shared_ptr<const State> state;
};

// And the gradient that it gives to an input.
struct SplitScope::Input final : Function {
  Input(std::shared_ptr<const State> s, const OpCall& call, int i)
      : state(std::move(s)), of{.op = call.op, .input = i, .dims = call[0].dim(), .gradient = {}} {}
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override { return {inputs.front()}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    SplitGradient told = of;
    told.gradient = grads.front();
    if (state->watcher) state->watcher->backward_gives(told);
    return grads;
  }
  std::string name() const override { return "input of a split op"; }

  std::shared_ptr<const State> state;
  SplitGradient of;
};

class SplitScope::Stage final : public amp::OutsideAmp {
 public:
  Stage(std::shared_ptr<Interceptor> below, std::shared_ptr<State> state)
      : OutsideAmp(std::move(below)), state_(std::move(state)) {}

  std::shared_ptr<OutsideAmp> over(std::shared_ptr<Interceptor> region) const override {
    return std::make_shared<Stage>(std::move(region), state_);
  }

  Outputs call(const OpCall& call) override {
    const InParts run = way_of(call);
    if (!run) return whole(call);
    if (recomputing()) return split_up(call, run);
    ++state_->ops;
    SplitWatcher* const watcher = state_->watcher;
    if (watcher) watcher->begins();
    const Outputs out = split_up(call, run);
    if (watcher) watcher->ends(call, out);
    return out;
  }

 private:
  using InParts = Outputs (Parts::*)(const OpCall& call) const;

  const Split& split() const { return state_->split; }

  Outputs split_up(const OpCall& call, InParts run) const {
    if (split().parts == 1) return whole(call);
    Interceptor* const results = chain().results;
    const auto parts = [&] {
      const StageScope exact(chain().results, nullptr);
      const std::vector<Tensor> inputs = watched_inputs(call);
      const std::vector<const Tensor*> refs = pointers_to(inputs);
      OpCall marked = call;
      marked.inputs = TensorRefs(refs.data(), call.inputs.size());
      return (Parts(split(), *this).*run)(marked);
    };
    Outputs out = parts();
    if (state_->watcher) out[0] = gradual::apply(std::make_shared<Result>(state_), {out[0]}).front();
    for (Tensor& t : out.values)
      if (results && t.defined() && t.is_floating()) t = gradual::apply(std::make_shared<WholeResult>(), {t}).front();
    return out;
  }

  // The tape runs backwards: the last one that is made is the first to get its gradient, when all parts have run.
  std::vector<Tensor> watched_inputs(const OpCall& call) const {
    std::vector<Tensor> inputs;
    for (int i = 0; i < call.inputs.size(); ++i) inputs.push_back(call[i]);
    if (!state_->watcher || !grad_enabled()) return inputs;
    for (int i = call.inputs.size() - 1; i >= 0; --i) {
      Tensor& t = inputs[static_cast<std::size_t>(i)];
      if (!t.defined() || !t.requires_grad()) continue;
      t = gradual::apply(std::make_shared<Input>(state_, call, i), {t}).front();
    }
    return inputs;
  }

  Outputs whole(const OpCall& call) const { return amp ? amp->call(call) : next_below_amp(call); }

  InParts way_of(const OpCall& call) const {
    const std::string_view module = context().module;
    const auto whole_module = [&](const std::string& path) { return is_or_is_within(module, path); };
    const bool forward = context().phase == Phase::forward || recomputing();
    if (!forward || std::ranges::any_of(split().except, whole_module)) return nullptr;
    const bool product = call.op == OpId::linear || (call.op == OpId::matmul && call[1].dim() == 2);
    const bool any_product = product || call.op == OpId::conv2d;
    const bool norm = call.op == OpId::layer_norm || call.op == OpId::rms_norm;
    switch (split().kind) {
      case SplitKind::columns: return any_product ? &Parts::in_columns : nullptr;
      case SplitKind::rows: return any_product ? &Parts::in_rows : nullptr;
      case SplitKind::samples:
        return any_product ? &Parts::product_of_samples : norm ? &Parts::norm_of_samples : nullptr;
      case SplitKind::sequence: return product ? &Parts::product_of_tokens : norm ? &Parts::norm_of_tokens : nullptr;
      case SplitKind::heads: break;
    }
    if (call.op == OpId::scaled_dot_product_attention) return &Parts::in_heads;
    return product ? way_of_attention(call, module) : nullptr;
  }

  // Of a product. The path of a model itself is empty, as is that of products outside of all modules.
  InParts way_of_attention(const OpCall& call, std::string_view module) const {
    if (module.empty()) {
      const Tensor& projection = state_->root_projection;
      return projection.defined() && call[1].shares_storage(projection) ? &Parts::in_columns : nullptr;
    }
    if (state_->attention.contains(module)) return &Parts::in_columns;
    return state_->output_projections.contains(module) ? &Parts::in_rows : nullptr;
  }

  std::shared_ptr<State> state_;
};

SplitScope::SplitScope(const Split& split, nn::Module& model, SplitWatcher* watcher)
    : state_(std::make_shared<State>(State{
          .split = split, .attention = {}, .output_projections = {}, .root_projection = {}, .watcher = watcher})) {
  check_valid(split, {});
  if (dynamic_cast<const amp::OutsideAmp*>(chain().amp))
    throwf("split {}={}: another split is in force; one at a time is allowed", to_string(split.kind), split.parts);
  std::set<const nn::Module*> projections;
  for (const auto& [path, module] : model.named_modules())
    if (const auto* attention = dynamic_cast<const nn::MultiheadAttention*>(module)) {
      state_->attention.insert(path);
      projections.insert(&attention->out_proj);
      if (path.empty()) state_->root_projection = attention->in_proj_weight;
    }
  for (const auto& [path, module] : model.named_modules())
    if (projections.contains(module)) state_->output_projections.insert(path);
  if (split.kind == SplitKind::heads && state_->attention.empty())
    throwf("split heads={}: the model has no nn::MultiheadAttention, whose heads could be split", split.parts);
  for (const std::string& path : split.except)
    if (!std::ranges::any_of(model.named_modules(), [&](const auto& one) { return one.first == path; }))
      throwf("split {}={}: the model has no module '{}'", to_string(split.kind), split.parts, path);
  Interceptor* const around = chain().amp;
  stage_ = std::make_shared<Stage>(around ? around->share() : nullptr, state_);
  installed_.emplace(chain().amp, stage_.get());
}

SplitScope::~SplitScope() { state_->watcher = nullptr; }

std::int64_t SplitScope::ops() const { return state_->ops; }

void SplitScope::check_used() const {
  if (state_->ops == 0)
    throwf(
        "split {}={}: no op of the model was split; modules that are excepted are not, nor are kinds of layers that it "
        "has no parts of",
        to_string(state_->split.kind), state_->split.parts);
}

}  // namespace gradual::lab
