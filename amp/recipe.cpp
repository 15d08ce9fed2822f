#include "recipe.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>

#include "../autograd/grad_mode.h"
#include "../core/formats/accumulator_options.h"
#include "../core/formats/synonyms.h"
#include "../core/ops/dispatch.h"
#include "../core/support/message_text.h"
#include "../core/support/printable.h"
#include "../core/support/throwf.h"
#include "../core/tensor/device_recording.h"
#include "../optim/clip.h"
#include "before_step.h"
#include "convert_model.h"
#include "learned_scales.h"
#include "quantized_recipes.h"
#include "quantized_run.h"

namespace gradual::amp {
namespace {

using optim::LowPrecisionUpdate;

std::vector<Recipe> built_in() {
  using enum Mode;
  using enum DType;
  std::vector<Recipe> all{
      {"fp32", "everything in f32"},
      {"tf32", "f32, contractions round their operands to 10 bits", full, f32, true},
      {"fp16-pure", "everything in f16: norms, loss, optimizer and sums of gradients too; no masters, no loss scaling",
       pure, f16},
      {"bf16-pure", "everything in bf16: norms, loss, optimizer and sums of gradients too; no masters", pure, bf16},
      {"fp16-master", "f16 model with norms and loss in f32, FP32 masters, dynamic loss scale", half, f16},
      {"bf16-master", "bf16 model with norms and loss in f32, FP32 masters", half, bf16},
      {"amp-fp16", "f32 parameters, ops cast to f16 by the policy table, dynamic loss scale", autocast, f16},
      {"amp-bf16", "f32 parameters, ops cast to bf16 by the policy table", autocast, bf16}};
  for (Recipe& r : all) {
    if (r.mode == pure) r.optimizer_state = r.dtype;
    if (r.mode == half) r.masters = Masters::per_tensor;
    if (r.dtype == f16 && r.mode != pure) r.scaling.emplace();
  }
  for (Recipe& r : quantized_recipes()) all.push_back(std::move(r));
  return all;
}

std::vector<Recipe>& all_recipes() {
  static std::vector<Recipe> all = built_in();
  return all;
}

constexpr std::pair<const char*, const char*> kAliases[] = {
    {"O0", "fp32"}, {"O1", "amp-fp16"}, {"O2", "fp16-master"}, {"O3", "fp16-pure"}};
constexpr std::string_view kStatic = "fp16-static:";

// A built-in or registered recipe by its name or alias, or an emulated one.
std::optional<Recipe> known_recipe(const std::string& name) {
  std::string wanted = name;
  for (const auto& [alias, target] : kAliases)
    if (name == alias) wanted = target;
  for (const Recipe& r : all_recipes())
    if (r.name == wanted) return r;
  return emulated_recipe(name);
}

// fp16-master with the static scale after the colon.
Recipe static_recipe(const std::string& name) {
  const std::string text = name.substr(kStatic.size());
  char* end = nullptr;
  const double scale = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !std::isfinite(scale) || !(scale > 0))
    throw_error("recipe '" + name + "': fp16-static: must be followed by a positive number, as in fp16-static:128");
  Recipe r = recipe("fp16-master");
  r.name = name;
  r.description = "f16 model with norms and loss in f32, FP32 masters, static loss scale " + text;
  r.scaling = optim::GradScalerOptions{.init_scale = scale, .dynamic = false};
  check_valid(r);
  return r;
}

// A mode's own table. In full, half and pure the parameters' dtype decides; only inputs and losses need casts.
PolicyTable make_table(Mode mode) {
  using enum OpId;
  PolicyTable table;
  if (mode == Mode::autocast) return table;
  for (int i = 0; i < kOpCount; ++i) table.set(static_cast<OpId>(i), CastPolicy::pass());
  if (mode == Mode::full) return table;
  for (OpId op : {matmul, linear, conv2d, conv2d_backward_input, scaled_dot_product_attention})
    table.set(op, CastPolicy::lower());
  for (OpId op : {cross_entropy, mse_loss, l1_loss, bce_loss, bce_with_logits_loss})
    table.set(op, mode == Mode::half ? CastPolicy::fp32() : CastPolicy::lower());
  return table;
}

const PolicyTable& table_of(Mode mode) {
  using enum Mode;
  static const PolicyTable tables[] = {make_table(full), make_table(autocast), make_table(half), make_table(pure)};
  return tables[static_cast<int>(mode)];
}

optim::UpdateOptions update_options(const Recipe& r, std::uint64_t seed) {
  optim::UpdateOptions o{
      .update = r.masters == Masters::none ? r.update : LowPrecisionUpdate::masters,
      .flat_masters = r.masters == Masters::flat,
      .state_dtype = r.optimizer_state == DType::f32 ? std::nullopt : std::optional(r.optimizer_state),
      .pure_arithmetic =
          is_half(r.optimizer_state) && r.masters == Masters::none && r.update == LowPrecisionUpdate::none,
      .seed = seed};
  if (r.quantization) {
    o.moments[0] = r.quantization->moment1;
    o.moments[1] = r.quantization->moment2;
  }
  return o;
}

// Whether the writer of a name that no recipe has thinks of an accumulator: "e8m18-acc/chunk=64", "hopper-fp8",
// "fp16/promote=128", and what is misspelt in them.
bool means_accumulator(const std::string& name) {
  const std::string base = name.substr(0, name.find_first_of(":/"));
  if (base.ends_with("-acc") || base.ends_with("-ac")) return true;
  const bool has_options = name.find('/') != std::string::npos && name.find('=') != std::string::npos;
  if (!has_options && base.find('-') == std::string::npos) return false;  // f32 and f64
  const std::vector<NamedAccumulator>& sums = accumulators();
  if (std::any_of(sums.begin(), sums.end(), [&](const NamedAccumulator& known) { return known.name == base; }))
    return true;
  const std::vector<NamedFormat>& formats = named_formats();
  return has_options &&
         std::any_of(formats.begin(), formats.end(), [&](const NamedFormat& known) { return known.name == base; });
}

// A recipe's name that is an accumulator, right or wrong.
[[noreturn]] void refuse_accumulator(const std::string& name) {
  const auto in_a_file = [](const std::string& sums) {
    return "a recipe's file names: {\"name\": \"mine\", \"base\": \"fp8-current\", \"quantization\": {\"accumulator\": "
           "\"" +
           sums + "\"}} (docs/precision.md)";
  };
  try {
    accumulator(name);
  } catch (const Error& wrong) {
    throwf(
        "no recipe '{}', and {}. An accumulator is FORMAT-acc or a name as hopper-fp8, then what is wanted of {}; {}",
        name, wrong.what(), accumulator_suffixes(), in_a_file("e8m18-acc/chunk=64"));
  }
  throwf("no recipe '{}': it is an accumulator, which {}", name, in_a_file(name));
}

// Makes an optimizer T with these options, whose precision the recipe's replaces.
template <class T, class Options> auto made_with(Options options) {
  return [options](std::vector<optim::ParamGroup> groups, const optim::UpdateOptions& precision) mutable {
    options.precision = precision;
    return std::make_unique<T>(std::move(groups), options);
  };
}

}  // namespace

MakeOptimizer::MakeOptimizer(const optim::SGDOptions& options) : function(made_with<optim::SGD>(options)) {}
MakeOptimizer::MakeOptimizer(const optim::AdamOptions& options) : function(made_with<optim::Adam>(options)) {}
MakeOptimizer::MakeOptimizer(const optim::AdamWOptions& options) : function(made_with<optim::AdamW>(options)) {}

std::string_view to_string(Mode mode) { return enum_name(mode, {"full", "autocast", "half", "pure"}); }
std::string_view to_string(Averages averages) { return enum_name(averages, {"f32", "storage"}); }
std::string_view to_string(Masters masters) { return enum_name(masters, {"none", "per-tensor", "flat"}); }

autograd::GradientSums gradient_sums(const Recipe& r) {
  return r.gradients.value_or(r.masters == Masters::none ? autograd::GradientSums::storage
                                                         : autograd::GradientSums::f32);
}

bool measures_noise(const Recipe& r) {
  return std::ranges::any_of(r.schedule, [](const Phase& p) { return p.when && info_of(p.when->quantity).of_noise; });
}

bool is_plain_f32(const Recipe& r) {
  const bool f32 = r.mode == Mode::full && r.dtype == DType::f32 && !r.tf32 && r.optimizer_state == DType::f32;
  const bool plain = r.policy.empty() && !r.quantization && !r.exchange && !r.scaling && r.schedule.empty();
  return f32 && plain;
}

// The step that a phase without `when` begins with.
static std::int64_t first_step(const Phase& p, std::int64_t steps) {
  return p.last > 0 ? steps - std::llround(p.last * static_cast<double>(steps)) : p.from;
}

std::vector<PhaseStart> starts_of(const Recipe& r, std::int64_t step, std::int64_t steps,
                                  const std::vector<PhaseStart>& begun) {
  std::vector<PhaseStart> starts;
  for (std::size_t i = 0; i < r.schedule.size(); ++i) {
    const Phase& p = r.schedule[i];
    if (p.last > 0 && steps <= 0)
      throwf("recipe '{}': its schedule has a share of the run; RunOptions::steps says how long the run is", r.name);
    const auto measured = std::ranges::find(begun, i, &PhaseStart::phase);
    if (p.when && measured != begun.end()) starts.push_back(*measured);
    if (!p.when && step >= first_step(p, steps)) starts.push_back({i, first_step(p, steps), std::nan("")});
  }
  return starts;
}

// What a phase changes; `modules` and what is kept between steps stay.
static void enter(Quantization& q, const Phase& phase) {
  if (!phase.modules.empty()) {
    for (const std::string& module : phase.modules) q.modules.emplace_back(module, phase.recipe);
    return;
  }
  const Quantization other = recipe(phase.recipe).quantization.value_or(Quantization{});
  for (const QuantizerField& field : std::span(kQuantizerFields).first<kOperandFields>())
    q.*field.quantizer = other.*field.quantizer;
  q.accumulator = other.accumulator;
  q.overflow = other.overflow;
  q.requantize = other.requantize;
  q.smooth = other.smooth;
  q.outliers = other.outliers;
}

Recipe recipe_in_step(const Recipe& r, std::int64_t step, std::int64_t steps, const std::vector<PhaseStart>& begun) {
  Recipe now = r;
  now.schedule.clear();
  for (const PhaseStart& start : starts_of(r, step, steps, begun)) {
    const Phase& p = r.schedule[start.phase];
    if (p.modules.empty()) now.quantization = r.quantization;  // an earlier phase ends
    enter(*now.quantization, p);
  }
  return now;
}

// Errors that only the length of a run shows. steps: 0 if it is not known.
static void check_schedule(const Recipe& r, std::int64_t steps) {
  std::int64_t before = 0;
  for (const Phase& p : r.schedule) {
    if (p.last > 0 && steps <= 0)
      throwf("recipe '{}': its schedule has a share of the run; RunOptions::steps says how long the run is", r.name);
    if (steps <= 0 || p.when) continue;
    const std::int64_t first = first_step(p, steps);
    if (p.last > 0 && first == steps)
      throwf("recipe '{}', schedule: the last {:g} of {} steps is no step", r.name, p.last, steps);
    if (first < before)
      throwf(
          "recipe '{}', schedule: in a run of {} steps the phase '{}' begins with step {}, before the one that it "
          "follows, which begins with step {}",
          r.name, steps, p.recipe, first, before);
    before = first;
  }
}

// An oscillating weight needs bins, and its full precision between steps.
static void check_oscillation_reset(const Recipe& r) {
  const std::string who = fmt::format("recipe '{}'", r.name);
  in_context(who, [&] { check_valid(*r.oscillation_reset); });
  if (!r.quantization || !r.quantization->forward_w)
    throw_error(who + ": oscillation_reset is for weights that forward rounds; there is no quantizer of forward_w");
  const Quantizer& w = *r.quantization->forward_w;
  if (is_random(w) || w.hadamard || has_kept_scale(w.scaling))
    throwf("{}: oscillation_reset needs a rounding of weights that is the same in each step; forward_w is {}", who,
           describe(w));
  if (r.quantization->weight || r.quantization->master || r.quantization->result)
    throw_error(who + ": oscillation_reset is for weights with full precision; leave weight, master and result out");
  const bool half = r.mode == Mode::half || r.mode == Mode::pure;
  if (half && r.masters == Masters::none)
    throw_error(who + ": oscillation_reset is for f32 parameters or masters; half parameters without them round it");
}

static void check_schedule(const Recipe& r) {
  const std::string who = fmt::format("recipe '{}', schedule", r.name);
  if (!r.schedule.empty() && !r.quantization)
    throw_error(who + ": it changes the quantizers of operands, and the recipe has no quantization");
  std::int64_t from = 0;
  double last = 1;
  bool has_last = false;
  Recipe whole = r;
  whole.schedule.clear();
  in_context(who, [&] {
    for (const Phase& p : r.schedule) {
      if (p.from < 0 || !(p.last >= 0 && p.last <= 1) || (p.from > 0 && p.last > 0))
        throwf("from is {} and last is {}; allowed is one of from, at least 0, and last, above 0 and at most 1", p.from,
               p.last);
      if (p.when && (p.from > 0 || p.last > 0)) throw_error("a phase with `when` has neither from nor last");
      if (p.when) check_valid(*p.when);
      const bool early = p.last == 0 ? p.from < from || has_last : p.last > last;
      if (!p.when && early)
        throw_error("phases stand in the order of their steps, those with `from` before those with `last`");
      has_last = has_last || p.last > 0;
      if (p.last > 0) last = p.last;
      else if (!p.when) from = p.from;
      if (recipe(p.recipe).quantization && !recipe(p.recipe).quantization->modules.empty())
        throwf("recipe '{}' has modules of its own, which only a model's recipe has", p.recipe);
      if (const auto& q = recipe(p.recipe).quantization; q && learns_scales(*q))
        throwf("recipe '{}' learns scales, which are a choice of the whole run", p.recipe);
      if (!recipe(p.recipe).schedule.empty()) throwf("recipe '{}' has a schedule of its own", p.recipe);
      enter(*whole.quantization, p);
      check_quantized(whole);
    }
  });
}

void check_valid(const Recipe& r) {
  const auto refuse_if = [&](bool wrong, const std::string& why) {
    if (wrong) throw_error("recipe '" + r.name + "': " + why);
  };
  const bool low = r.mode == Mode::half || r.mode == Mode::pure;
  const bool masters = r.masters != Masters::none;
  const bool update = r.update != LowPrecisionUpdate::none;
  refuse_if(r.name.empty(), "it needs a name");
  if (!is_printable_name(r.name))
    throwf("recipe '{}': its name has a control character; allowed are letters, digits and marks",
           printable(r.name, ""));
  refuse_if(
      r.mode == Mode::full && r.dtype != DType::f32,
      fmt::format("mode full computes in f32, not {}; autocast, half and pure take f16 and bf16", to_string(r.dtype)));
  refuse_if(r.mode != Mode::full && !is_half(r.dtype),
            fmt::format("modes autocast, half and pure take the dtype f16 or bf16, not {}", to_string(r.dtype)));
  refuse_if(r.update == LowPrecisionUpdate::masters,
            "update is none, kahan, stochastic or eco; masters have their own field");
  const bool eco = r.update == LowPrecisionUpdate::eco;
  const bool rounds_weights = r.quantization && r.quantization->weight;
  refuse_if(!low && (masters || (update && !eco)),
            "masters, kahan and stochastic updates are for half parameters (modes half and pure); this mode keeps f32 "
            "ones");
  refuse_if(
      !low && eco && !rounds_weights,
      "eco updates are for half parameters (modes half and pure) and for a quantizer of `weight`; there is neither");
  refuse_if(eco && r.quantization && r.quantization->moment1,
            "eco updates add to the first moment; leave the quantizer of `moment1` out");
  refuse_if(masters && update, fmt::format("masters and a {} update exclude each other", to_string(r.update)));
  refuse_if(r.optimizer_state != DType::f32 && !is_half(r.optimizer_state),
            fmt::format("optimizer_state is f32, f16 or bf16, not {}", to_string(r.optimizer_state)));
  refuse_if(r.gradients && r.mode == Mode::full, "mode full has f32 gradients; leave `gradients` out");
  refuse_if(r.scaling && !r.scaling->enabled, "a scaling that is not enabled is left out");
  in_context("recipe '" + r.name + "'", [&] {
    if (r.scaling) static_cast<void>(optim::GradScaler(*r.scaling));  // checks its options
    static_cast<void>(policy_table(r));                               // checks the edits
  });
  if (r.quantization) check_quantized(r);
  check_schedule(r);
  if (r.oscillation_reset) check_oscillation_reset(r);
  if (r.exchange) in_context("recipe '" + r.name + "'", [&] { check_valid(*r.exchange); });
  for (const auto& [op, policy] : r.policy)
    refuse_if(r.mode == Mode::full && policy.kind == PolicyKind::lower,
              fmt::format("mode full has no lower dtype for {}; name one: f16 or bf16", to_string(op)));
}

void check_valid(const Recipe& r, nn::Module& model) {
  check_valid(r);
  if (!r.quantization) return;
  Quantization q = *r.quantization;
  for (const Phase& p : r.schedule)
    for (const std::string& module : p.modules) q.modules.emplace_back(module, p.recipe);
  in_context("recipe '" + r.name + "'", [&] { name_layers(q, model); });
}

PolicyTable policy_table(const Recipe& r) {
  PolicyTable table = table_of(r.mode);
  for (const auto& [op, policy] : r.policy) table.set(op, policy);
  return table;
}

Recipe recipe(const std::string& name) {
  if (name.starts_with(kStatic)) return static_recipe(name);
  if (const auto known = known_recipe(name)) return *known;
  const std::string element = name.substr(0, name.find(':'));
  for (const NamedFormat& n : named_formats()) {
    if (n.name != element || !element.starts_with('e') || !n.format.is_signed) continue;
    throwf(
        "no recipe '{0}': {1} is a format. e{2}m{3} is a recipe, of products in {2} exponent and {3} mantissa bits; in "
        "a recipe's file an operand may be {{\"format\": \"{1}\"}} (docs/precision.md)",
        name, element, n.format.exponent_bits, n.format.mantissa_bits);
  }
  if (means_accumulator(name)) refuse_accumulator(name);
  std::vector<std::string> names = recipe_names();
  names.insert(names.end(),
               {"eXmY", "eXmY:ROUNDING", "pure:FORMAT", "mx16:FORMAT", "fp16-static:SCALE", "O0", "O1", "O2", "O3"});
  throw_error("no recipe '" + name + "'; there are " + join(names) + did_you_mean(name, names, format_synonyms()));
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Recipe& r : all_recipes()) names.push_back(r.name);
  return names;
}

bool is_recipe(const std::string& name) { return name.starts_with(kStatic) || known_recipe(name); }

void register_recipe(const Recipe& r) {
  check_valid(r);
  if (is_recipe(r.name)) throwf("register_recipe: the name '{}' belongs to another recipe already", r.name);
  all_recipes().push_back(r);
}

RecipeScope::RecipeScope(const Recipe& r, Device device, std::shared_ptr<QuantizationState> state)
    : precision_(r.tf32 ? MatmulPrecision::tf32 : MatmulPrecision::f32), results_(r.quantization) {
  if (r.mode == Mode::full && r.policy.empty() && !r.quantization) return;
  const std::optional dtype = r.mode == Mode::full ? std::nullopt : std::optional(r.dtype);
  AutocastOptions options{.dtype = dtype, .device = device, .table = policy_table(r)};
  if (r.quantization) quantize_region(options, *r.quantization, std::move(state));
  autocast_.emplace(options);
}

RecipeRun::RecipeRun(const Recipe& recipe, nn::Module& model, const MakeOptimizer& make, const RunOptions& options)
    : recipe_(recipe), now_(recipe), model_(model), options_(options) {
  check_valid(recipe_, model);
  check_schedule(recipe_, options.steps);
  if (!(options.clip_norm >= 0)) throwf("RecipeRun: clip_norm is {}; it must be at least 0", options.clip_norm);
  not_null(make, "RecipeRun: the function that makes the optimizer");
  if (!model.trainer().expired()) throwf("RecipeRun: another run trains the model {}", model.kind());
  if (recipe_.quantization) {
    name_layers(*recipe_.quantization, model_);
    if (learns_scales(*recipe_.quantization)) register_steps(QuantizationState(*recipe_.quantization), model_);
  }
  const auto parameters = model.named_parameters();
  if (parameters.empty()) throw_error("RecipeRun: the model " + model.kind() + " has no parameters to train");
  for (const auto& [name, p] : parameters) parameters_.push_back(p);
  for (const auto& [name, b] : model.named_buffers()) buffers_.push_back(b);
  for (const auto& [name, p] : parameters)
    if (is_half(p.dtype()) && (p.dtype() != recipe_.dtype || recipe_.mode == Mode::autocast))
      throwf("RecipeRun: recipe '{}' takes no {} parameters, such as {}; cast the model with to(DType::f32)",
             recipe_.name, to_string(p.dtype()), name);
  first_ = parameters.front().second;
  device_ = first_.device();
  // The optimizer first: it copies its masters from the FP32 values.
  optimizer_ = make({optim::named_group(parameters)}, update_options(recipe_, options.seed));
  if (!optimizer_) throw_error("RecipeRun: the function that makes the optimizer returned none");
  model.trainer() = optimizer_;
  for (const Tensor& p : parameters_) autograd::set_gradient_sums(p, gradient_sums(recipe_));
  if (recipe_.mode == Mode::half) to_half(model_, recipe_.dtype);
  if (recipe_.mode == Mode::pure) to_pure(model_, recipe_.dtype);
  dtype_ = first_.dtype();
  if (recipe_.scaling) scaler_.emplace(*recipe_.scaling);
  if (recipe_.oscillation_reset) oscillation_.emplace(*recipe_.oscillation_reset, model_);
  enter_phase();
  if (quantization_) quantize_parameters(*quantization_, model_, *optimizer_);
}

void RecipeRun::tell_purpose() const {
  using Purpose = QuantizationState::Purpose;
  if (!quantization_) return;
  Purpose& purpose = quantization_->purpose;
  if (!model_.training()) purpose = Purpose::evaluation;
  else if (purpose == Purpose::evaluation) purpose = Purpose::training;
}

void RecipeRun::check_model() const {
  if (model_.trainer().lock() != optimizer_) throw_error("RecipeRun: its model was moved away; make a new run");
  if (first_.dtype() != dtype_ || first_.device() != device_)
    throwf("RecipeRun: the model became {} on {}, the run began with {} on {}; make a new run",
           to_string(first_.dtype()), to_string(first_.device()), to_string(dtype_), to_string(device_));
}

RecipeScope RecipeRun::scope() const {
  check_model();
  tell_purpose();
  return RecipeScope(now_, device_, quantization_);
}

Tensor RecipeRun::run_forward(const std::function<Tensor()>& loss) const {
  const RecipeScope under = scope();
  return not_null(loss, "RecipeRun: the function of the loss or output")();
}

Tensor RecipeRun::forward(const std::function<Tensor()>& loss) const {
  const std::vector<Tensor> changing = grad_enabled() ? buffers_ : std::vector<Tensor>();  // none in an evaluation
  const BeforeStep before(changing, {}, BeforeStep::Gradients::added_to, quantization_.get(),
                          default_generator().state());
  return before.whole([&] { return run_forward(loss); });
}

Tensor RecipeRun::evaluate(const std::function<Tensor()>& output) const {
  const NoGrad off;
  std::optional<Scoped<QuantizationState::Purpose>> restored;  // it may be called on the way of a step
  if (quantization_) restored.emplace(quantization_->purpose, quantization_->purpose);
  return forward(output);
}

void RecipeRun::backward(const Tensor& loss, autograd::GradOptions options) {
  const MatmulPrecisionScope precision(recipe_.tf32 ? MatmulPrecision::tf32 : MatmulPrecision::f32);
  const ResultScope results(recipe_.quantization);
  tell_purpose();  // the model may have been evaluated since forward
  options.sums = gradient_sums(recipe_);
  autograd::backward({scaler_ ? scaler_->scale(loss) : loss}, {}, std::move(options));
  if (quantization_) quantization_->end_backward();
}

optim::StepResult RecipeRun::update() {
  const ResultScope results(recipe_.quantization);
  const std::optional<Measured> measured = measure_for_phase();
  if (quantization_) quantize_gradients(*quantization_, model_);
  if (scaler_ && quantization_) scaler_->note(quantization_->take_hidden());
  if (options_.clip_norm > 0) {
    if (scaler_) scaler_->unscale_(*optimizer_);
    optim::clip_grad_norm_(*optimizer_, options_.clip_norm);
  }
  optim::StepResult result(*optimizer_, Tensor());
  if (scaler_) {
    result = scaler_->step(*optimizer_);
    scaler_->update();
  } else {
    optimizer_->step();
  }
  if (quantization_) quantize_parameters(*quantization_, model_, *optimizer_);
  optimizer_->zero_grad();
  if (quantization_) {
    if (quantization_->has_outliers()) device::need_no_capture("the update of a recipe with outliers");
    if (quantization_->choose_outliers() && oscillation_) oscillation_->forget();
  }
  set_steps(steps_ + 1);
  if (oscillation_) {
    device::need_no_capture("the update of a recipe with oscillation_reset");
    oscillation_->after_update(steps_, *quantization_, *optimizer_);
  }
  if (!recipe_.schedule.empty()) {
    device::need_no_capture("the update of a recipe with a schedule");
    if (measured) note(*measured);
    enter_phase();
  }
  return result;
}

RunStep RecipeRun::step(const std::function<Tensor()>& loss) {
  const BeforeStep before(buffers_, parameters_, BeforeStep::Gradients::added_to, quantization_.get(),
                          default_generator().state());
  tell_purpose();
  const Tensor value = before.whole([&] {
    std::optional<Scoped<QuantizationState::Purpose>> purpose;
    if (quantization_) purpose.emplace(quantization_->purpose, QuantizationState::Purpose::part_of_step);
    const Tensor computed = run_forward(loss);
    backward(computed);
    return computed;
  });
  if (quantization_) {
    quantization_->end_forward();
    quantization_->end_backward();
  }
  return {value.detach(), update()};
}

void RecipeRun::set_steps(std::int64_t steps) {
  steps_ = steps;
  if (quantization_) quantization_->set_ended_steps(steps);
}

bool RecipeRun::counts_steps() const {
  const bool has_outliers = quantization_ && quantization_->has_outliers();  // those of phases are in the schedule
  return has_outliers || !recipe_.schedule.empty() || recipe_.oscillation_reset;
}

// The number of steps in a state. Earlier versions have that of a recipe with outlier channels in the quantisation's.
static std::int64_t steps_in(const StateDict& state) {
  const std::string of_quantization = "quantization.steps";
  if (!state.contains("steps") && state.contains(of_quantization)) return state.integer(of_quantization);
  return static_cast<std::int64_t>(state.real("steps"));
}

static bool has_conditions(const Recipe& r) {
  return std::ranges::any_of(r.schedule, [](const Phase& p) { return p.when.has_value(); });
}

StateDict RecipeRun::state_dict() {
  StateDict state;
  state.set("recipe", recipe_.name);
  state.add("model", model_.state_dict());
  state.add("optimizer", optimizer_->state_dict());
  if (scaler_) state.add("scaler", scaler_->state_dict());
  if (quantization_) state.add("quantization", quantization_->state_dict());
  if (counts_steps()) state.set("steps", static_cast<double>(steps_));
  if (has_conditions(recipe_)) state.add("phases", phases_state());
  if (oscillation_) state.add("oscillation", oscillation_->state_dict());
  return state;
}

void RecipeRun::load_state_dict(const StateDict& state) {
  const std::string& from = state.text("recipe");
  if (from != recipe_.name)
    throwf("RecipeRun: the state is of a run of '{}'; this run's recipe is '{}'", from, recipe_.name);
  model_.load_state_dict(state.sub("model"));
  optimizer_->load_state_dict(state.sub("optimizer"));  // after the model: its masters stand
  if (scaler_) scaler_->load_state_dict(state.sub("scaler"));
  if (!quantization_) return;
  if (counts_steps()) set_steps(steps_in(state));
  if (has_conditions(recipe_)) load_phases(state.sub("phases"));
  enter_phase();
  if (oscillation_) oscillation_->load_state_dict(state.sub("oscillation"));
  quantization_->load_state_dict(state.sub("quantization"));
  for (const auto& [name, param] : model_.named_parameters()) optimizer_->keep_master(param);
}

StateDict RecipeRun::master_state_dict() { return amp::master_state_dict(model_, *optimizer_); }

}  // namespace gradual::amp
