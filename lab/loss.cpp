#include "loss.h"

#include <algorithm>
#include <string_view>

#include "../core/ops/derived_ops.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "../nn/auxiliary_loss.h"
#include "../pt2/module.h"
#include "tasks.h"

namespace gradual::lab {
namespace {

Tensor at_least_f32(const Tensor& x) { return x.dtype() == DType::f64 ? x : x.to(DType::f32); }

Tensor mse(const Tensor& x, const Tensor& y) { return mse_loss(x, y); }
Tensor l1(const Tensor& x, const Tensor& y) { return l1_loss(x, y); }
Tensor huber(const Tensor& x, const Tensor& y) { return huber_loss(at_least_f32(x), y); }
Tensor bce(const Tensor& x, const Tensor& y) { return bce_with_logits_loss(x, y); }
Tensor kl(const Tensor& x, const Tensor& y) {
  const double width = static_cast<double>(x.sizes().back());
  return mul(kl_div(log_softmax(x, -1), y), width);
}

struct LossFormula {
  KnownLoss loss;
  std::string_view name;
  std::string_view metric;
  Tensor (*function)(const Tensor& outputs, const Tensor& targets) = nullptr;  // of targets that fit; null: output
};
constexpr LossFormula kFormulas[] = {{KnownLoss::cross_entropy, "cross_entropy", "accuracy", classification_loss},
                                     {KnownLoss::mse, "mse", "rmse", mse},
                                     {KnownLoss::l1, "l1", "mae", l1},
                                     {KnownLoss::huber, "huber", "rmse", huber},
                                     {KnownLoss::bce, "bce", "accuracy", bce},
                                     {KnownLoss::kl, "kl", "loss", kl},
                                     {KnownLoss::output, "output", "loss"}};

const LossFormula* formula_of(const Loss& loss) {
  if (loss.function) return nullptr;
  const auto* const found = std::ranges::find(kFormulas, loss.name, &LossFormula::name);
  return found == std::end(kFormulas) ? nullptr : found;
}

std::string names_of(const data::Fields& fields) {
  std::vector<std::string> names;
  for (const auto& [name, values] : fields) names.push_back(name);
  return join(names);
}
std::string names_of(const pt2::ExportedModule& model) {
  std::vector<std::string> names;
  for (const pt2::InputInfo& input : model.inputs()) names.push_back(input.name);
  return join(names);
}

Tensor with_dtype(const Tensor& values, DType dtype) {
  if (values.dtype() == dtype) return values;
  const Scoped<Chain> bare(chain(), {});  // the reader's work, not the model's
  return values.to(dtype);
}

// The inputs of an exported model, and the targets.
Outputs run_exported(pt2::ExportedModule& model, const data::Batch& batch, bool wants_target) {
  std::vector<Tensor> inputs;
  const std::vector<pt2::InputInfo>& arguments = model.inputs();
  data::Fields left = batch.fields;
  if (left.empty()) left = {{arguments.at(0).name, batch.inputs}};
  if (batch.fields.empty() && arguments.size() == 2 && !wants_target)
    left.emplace_back(arguments[1].name, batch.targets);
  for (const pt2::InputInfo& argument : arguments) {
    const auto found = std::ranges::find(left, argument.name, &data::Fields::value_type::first);
    if (found == left.end())
      throwf("the model's forward takes {}; the data have {}, and no '{}'", names_of(model),
             batch.fields.empty() ? "inputs and targets" : names_of(batch.fields), argument.name);
    inputs.push_back(with_dtype(found->second, argument.dtype));
    left.erase(found);
  }
  if (batch.fields.empty()) return {model(inputs), batch.targets};
  if (left.size() > 1)
    throwf("the model's forward takes {}; of the data's other fields one is the target, and there are {}",
           names_of(model), names_of(left));
  return {model(inputs), left.empty() ? Tensor() : left[0].second};
}

}  // namespace

std::optional<KnownLoss> Loss::known() const {
  const LossFormula* formula = formula_of(*this);
  return formula ? std::optional(formula->loss) : std::nullopt;
}

std::vector<std::string> loss_names() {
  std::vector<std::string> names;
  for (const LossFormula& formula : kFormulas) names.emplace_back(formula.name);
  return names;
}

void check_known(const Loss& loss) {
  if (!loss.function && !formula_of(loss))
    throwf("lab: no loss '{}'{}; allowed are {}", loss.name, did_you_mean(loss.name, loss_names()), join(loss_names()));
}

std::string metric_for(const Loss& loss) {
  const LossFormula* formula = formula_of(loss);
  return formula ? std::string(formula->metric) : "loss";
}

Outputs outputs_of(nn::Module& model, const data::Batch& batch, bool wants_target) {
  const nn::AuxiliaryLossScope auxiliary;
  Outputs made;
  if (auto* exported = dynamic_cast<pt2::ExportedModule*>(&model)) {
    made = run_exported(*exported, batch, wants_target);
  } else {
    if (batch.fields.size() > 2)
      throwf("the model takes one input; the data have the fields {}; a model of torch.export takes several",
             names_of(batch.fields));
    made = {{model(batch.inputs)}, batch.targets};
  }
  made.auxiliary = auxiliary.sum();
  if (made.all.empty()) throw_error("the model returns nothing");
  if (wants_target && !made.targets.defined())
    throwf(
        "all fields of the data, {}, are arguments of the model's forward; no target is left (--loss output takes "
        "the model's own loss)",
        names_of(batch.fields));
  return made;
}

Tensor fitting_targets(const Loss& loss, const Tensor& outputs, const Tensor& targets) {
  if (loss.function) return targets;
  if (loss.known() == KnownLoss::cross_entropy) {
    if (targets.is_floating())
      throwf("loss cross_entropy compares with class numbers; the targets are {} {}", to_string(targets.dtype()),
             to_string(targets.sizes()));
    return targets;
  }
  const DType dtype = outputs.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor fitting = with_dtype(targets, dtype);
  if (fitting.sizes() == outputs.sizes()) return fitting;
  const bool flat = outputs.dim() <= 2 || fitting.dim() <= 2;
  if (!flat || outputs.numel() != fitting.numel() || outputs.size(0) != fitting.size(0))
    throwf("loss {}: outputs {} and targets {}; allowed are equal shapes, or [N, ..] beside all of it in one row",
           loss.name, to_string(outputs.sizes()), to_string(targets.sizes()));
  const Scoped<Chain> bare(chain(), {});
  return fitting.reshape(outputs.sizes());
}

static Tensor main_loss(const Loss& loss, const Outputs& outputs) {
  const Tensor& first = outputs.all[0];
  if (loss.is_output()) {
    if (first.numel() != 1)
      throwf("loss output: the model's first output is {}; allowed is a scalar, its loss", to_string(first.sizes()));
    return first.dim() == 0 ? first : first.reshape({});
  }
  const Tensor targets = fitting_targets(loss, first, outputs.targets);
  if (loss.function) return loss.function(first, targets);
  return formula_of(loss)->function(first, targets);
}

Tensor loss_of(const Loss& loss, const Outputs& outputs) {
  const Tensor value = main_loss(loss, outputs);
  return outputs.auxiliary.defined() ? add(value, outputs.auxiliary) : value;
}

}  // namespace gradual::lab
