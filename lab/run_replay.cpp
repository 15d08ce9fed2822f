// Observing a run: its gradients, a replay from its start, and steps after its end.
#include <algorithm>
#include <cmath>

#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/quantize/what_if.h"
#include "../inspect/block_xray.h"
#include "../inspect/shadow.h"
#include "../inspect/step_watch.h"
#include "../pt2/module.h"
#include "json/fields.h"
#include "layer_kinds.h"
#include "run.h"

namespace gradual {

template <class V> void fields(V& v, ScaleLoss& l) {
  v("scale", scale_text(l.scale));
  v("underflow", l.underflow);
  v("subnormal", l.subnormal);
  v("overflow", l.overflow);
  v("sqnr_db", l.sqnr_db);
}
template <class V> void fields(V& v, FormatLoss& f) {
  v("format", f.name);
  v("unscaled", f.unscaled);
  v("best", f.best);
  v("amax", f.amax);
}

}  // namespace gradual

namespace gradual::lab {
namespace {

constexpr std::int64_t kMostElements = 1 << 18;  // sampled elements of one tensor, at most

void append(const Tensor& t, std::vector<float>& to) {
  const Scoped<Chain> bare(chain(), {});  // not a part of training
  const std::vector<float> values = t.to_vector<float>();
  const auto step = static_cast<std::size_t>((t.numel() + kMostElements - 1) / kMostElements);
  for (std::size_t i = 0; i < values.size(); i += step) to.push_back(values[i]);
}

// Divides the values in place by the loss scale first.
Json role_json(const char* role, std::vector<float>& values, double loss_scale, const std::vector<Format>& also) {
  for (float& v : values) v = static_cast<float>(v / loss_scale);
  // from_blob: the peaks of the run do not count this memory
  const WhatIf w = what_if(from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, DType::f32),
                           {.also = also, .blocks = {}});
  return {{"role", role},
          {"elements", w.elements},
          {"zeros", w.zeros},
          {"not_finite", w.nan + w.inf},
          {"amin", w.amin},
          {"amax", w.amax},
          {"headroom", w.headroom},
          {"loss_scale", scale_text(w.loss_scale)},
          {"formats", json_of(w.formats)}};
}

}  // namespace

std::vector<Format> formats_of(const amp::Recipe& recipe, amp::Role role) {
  if (!recipe.quantization) return {*amp::counted_format(recipe, role)};
  std::vector<Format> all;
  const auto add = [&](const Format& f) {
    if (std::ranges::find(all, f) == all.end()) all.push_back(f);
  };
  for (const auto field : amp::kOperandQuantizers[static_cast<int>(role)])
    if (const auto& operand = (*recipe.quantization).*field) add(operand->format);
  for (const auto& [module, other] : recipe.quantization->modules)
    if (const amp::Recipe r = amp::recipe(other); r.quantization) std::ranges::for_each(formats_of(r, role), add);
  return all;
}

void GradientSample::gradient(const autograd::GradientEvent& event) {
  const Tensor& g = event.grad;
  if (!g.defined() || !g.is_floating() || g.dim() == 0) return;  // 0-d: the loss and its scaling
  const bool gathered = event.input < 0;
  // Takes a leaf's gradient once it is accumulated, not its parts.
  if (!gathered && (leaf_of(event) || !seen_.insert(g.unsafe_impl()->storage->id).second)) return;
  append(g, gathered ? weight_gradients_ : errors_);
}

std::string GradientSample::what_if_json(nn::Module& model, double loss_scale, std::int64_t step,
                                         const std::vector<Format>& also) {
  std::vector<float> weights;
  for (const Tensor& p : model.parameters()) append(p, weights);
  const Json roles =
      Json::array({role_json("weights", weights, 1, also), role_json("errors", errors_, loss_scale, also),
                   role_json("weight gradients", weight_gradients_, loss_scale, also)});
  return Json{{"step", step}, {"roles", roles}}.dump();
}

static bool all_finite(const Tensor& inputs, const Tensor& targets, const data::Fields& fields) {
  bool finite = inspect::numbers_of(inputs).finite() && inspect::numbers_of(targets).finite();
  for (const auto& [name, values] : fields) finite = finite && inspect::numbers_of(values).finite();
  return finite;
}

amp::RunStep Run::observed_step(const std::function<amp::RunStep()>& step, const data::Batch& batch,
                                inspect::ObservedStep& observed) {
  observed.ledger.clear();
  observed.finite_batch = all_finite(batch.inputs, batch.targets, batch.fields);
  observed.bad_tensor = inspect::first_nonfinite(*model_);
  const ObserverScope scope(observed.ledger);
  amp::RunStep outcome = step();
  observed.skipped = outcome.result.skipped();
  return outcome;
}

bool Run::replayed() const {
  return replay_ && steps_ > 0 && (steps_ > replay_last_ || (replay_->nonfinite && !replay_->skipped));
}

void Run::observe_errors(Result& result) {
  data::Batch batch;
  if (result_.status == Status::diverged || !(loader_->next(batch) || loader_->next(batch))) return;
  const GeneratorScope scope(generator_);
  inspect::Shadow shadow(*model_, &run_->optimizer(), {.attribution = true});
  inspect::XrayObserver blocks(*model_, false);
  {
    const ObserverScope one(shadow);
    const ObserverScope two(blocks);
    run_->step([&] { return loss_of(batch); });
  }
  result.errors = step_errors(shadow, steps_);
  result.blocks = block_maps(blocks);
  shares_ = inspect::loss_shares(shadow);
}

inspect::Evidence Run::evidence() {
  inspect::Evidence e{.recipe = &recipe_, .steps = steps_, .skipped = result_.skipped_steps};
  const auto& scale = result_.curve.scale;
  for (std::size_t i = 1; i < scale.size(); ++i) e.growths += scale[i] > scale[i - 1];
  for (const double loss : result_.curve.loss)
    if (std::isfinite(loss)) e.rise = std::max(e.rise, loss / result_.curve.loss[0]);
  if (result_.status != Status::diverged) {
    const GeneratorScope scope(generator_);
    e.late = inspect::ObservedStep{.step = steps_, .ledger = inspect::Ledger(*model_)};
    const amp::PrecisionObserver watch(casts_, recipe_);
    data::Batch batch;
    inspect::UpdateMeter meter(*model_);
    const ObserverScope metering(meter);
    const inspect::StepWatch monitors(*model_);
    for (int i = 0; i < 2 && (loader_->next(batch) || loader_->next(batch)); ++i)
      observed_step([&] { return run_->step([&] { return loss_of(batch); }); }, batch, *e.late);
    e.scalars = meter.scalars();
    monitors.write_to(*e.late);
  }
  e.casts = casts_;
  e.shares = shares_;
  for (const auto& [name, update] : updates_) e.updates.push_back(update);
  for (const auto& [path, module] : model_->named_modules()) e.layers.push_back(path);
  e.names = layer_names(*model_);
  e.quantization = inspect::resolved_quantization(recipe_, *model_);
  if (const auto* exported = dynamic_cast<const pt2::ExportedModule*>(model_.get())) e.lines = exported->lines();
  return e;
}

void Run::intervene(const std::vector<inspect::Exact>& exact) {
  samples_ = false;
  if (!exact.empty()) intervention_.emplace(exact);
}

bool Run::train_to(std::int64_t steps) {
  samples_ = false;
  stop_after_ = steps;
  if (steps_ < steps) train("", {.recipe = recipe_});
  return !stop_asked_ || steps_ >= steps;
}

double Run::test_loss() {
  const GeneratorScope scope(generator_);
  Progress progress{.recipe = recipe_};
  end_epoch(progress);
  return result_.test_loss;
}

std::optional<inspect::ObservedStep> Run::replay(std::int64_t first, std::int64_t last, bool evaluate) {
  inspect::ObservedStep r{.ledger = inspect::Ledger(*model_)};
  replay_ = &r;
  replay_first_ = first;
  replay_last_ = last;
  Progress progress{.recipe = recipe_};
  train("", progress);
  if (stop_asked_ && !replayed()) return {};
  if (evaluate && !r.nonfinite) {
    const GeneratorScope scope(generator_);
    r.ledger.clear();
    r.evaluation = true;
    r.bad_tensor = inspect::first_nonfinite(*model_);
    r.finite_batch = all_finite(data_.test.inputs, data_.test.targets, data_.test.fields);
    const ObserverScope observe(r.ledger);
    end_epoch(progress);
    r.nonfinite = !std::isfinite(result_.test_loss);
  }
  return r;
}

}  // namespace gradual::lab
