// A recipe is a named, complete choice of precision: the dtype of each op, masters, loss scaling. Recipes are values;
// your own takes a few lines:
//
//   amp::Recipe mine = amp::recipe("fp16-master");
//   mine.name = "fp16-kahan";
//   mine.masters = amp::Masters::none;
//   mine.update = optim::LowPrecisionUpdate::kahan;
//   amp::register_recipe(mine);                               // now known to the lab and to recipe()
//
// A RecipeRun trains a model with a recipe:
//
//   amp::RecipeRun run(amp::recipe("amp-fp16"), model, optim::AdamWOptions{.lr = 1e-3});
//   for (auto& [x, y] : loader) run.step([&] { return cross_entropy(model(x), y); });
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../autograd/autograd.h"
#include "../core/ops/compute_mode.h"
#include "../nn/module.h"
#include "../optim/adam.h"
#include "../optim/grad_scaler.h"
#include "../optim/sgd.h"
#include "autocast.h"
#include "exchange.h"
#include "oscillation_reset.h"
#include "phase_condition.h"
#include "quantized_results.h"

namespace gradual::amp {

enum class Mode : std::uint8_t {
  full,      // the model unchanged, in f32
  autocast,  // f32 parameters, ops cast by the policy table
  half,      // parameters in half, norm layers and losses in f32
  pure       // everything in half
};
enum class Masters : std::uint8_t { none, per_tensor, flat };
// Where a moving average of the weights is kept: in f32, from the masters if there are some; or in storage, the dtype
// of its parameter, from the parameter, where changes below half an ulp are lost.
enum class Averages : std::uint8_t { f32, storage };
std::string_view to_string(Mode mode);  // as in a JSON file
std::string_view to_string(Masters masters);
std::string_view to_string(Averages averages);

// A later part of a run, in which operands follow another recipe's quantizers: those of the six operands, the
// accumulator and the overflow policy. What is kept between steps, results and the other fields stay.
struct Phase {
  int from = 0;                           // the step that it begins with, counted from 0
  double last = 0;                        // above 0, instead of `from`: the share of the run's steps that it ends with
  std::string recipe = {};                // by name; one without quantisation leaves operands in high precision
  std::vector<std::string> modules = {};  // by path, as in Quantization::modules; empty: all
  // Set, instead of `from` and `last`: it begins when a measured quantity says so. It is watched once the phase before
  // it in the list has begun, and until one after it has.
  std::optional<PhaseCondition> when = {};

  bool operator==(const Phase&) const = default;
};
// A phase that has begun.
struct PhaseStart {
  std::size_t phase = 0;  // index in Recipe::schedule
  std::int64_t step = 0;  // its first one, counted from 0
  double value = 0;       // of a phase with `when`: the quantity in the step before; else NaN
};

struct Recipe {
  std::string name;
  std::string description = {};
  Mode mode = Mode::full;
  DType dtype = DType::f32;  // f32 in mode full, f16 or bf16 in the others
  bool tf32 = false;         // contractions round f32 operands to 10 mantissa bits
  Masters masters = Masters::none;
  optim::LowPrecisionUpdate update = optim::LowPrecisionUpdate::none;  // without masters
  DType optimizer_state = DType::f32;                                  // of momentum and moments
  // Where the gradients of half tensors add up, those of a parameter over micro-batches too: f32, or storage, their own
  // dtype, to nearest or stochastic. Unset: f32 with masters, else storage, which loses small terms and in f16
  // overflows.
  std::optional<autograd::GradientSums> gradients = {};
  std::optional<Averages> averages = {};                 // unset: f32
  std::optional<optim::GradScalerOptions> scaling = {};  // .dynamic tells static from dynamic
  std::vector<std::pair<OpId, CastPolicy>> policy = {};  // edits of the mode's table
  std::optional<Quantization> quantization = {};         // of the ops of kQuantisedOps
  std::optional<Exchange> exchange = {};                 // of gradients between ranks (dist/)
  // In ascending order; each begins from the recipe's own quantisation, which it needs.
  std::vector<Phase> schedule = {};
  // Weights that oscillate around a threshold of forward_w's rounding are set to the number that they are rounded to.
  std::optional<OscillationReset> oscillation_reset = {};
};

// The phases that have begun by this step of a run of `steps` steps (0: unknown, Error for a phase with `last`), in the
// schedule's order. begun: those of them with `when`.
std::vector<PhaseStart> starts_of(const Recipe& recipe, std::int64_t step, std::int64_t steps,
                                  const std::vector<PhaseStart>& begun);
// The recipe as it is in a step of a run of `steps` steps (0: unknown, Error for a phase with `last`). Its schedule is
// empty. begun: the phases with `when` that have begun; others have not.
Recipe recipe_in_step(const Recipe& recipe, std::int64_t step, std::int64_t steps,
                      const std::vector<PhaseStart>& begun = {});
// The recipe's `gradients`, or what they are if it is unset.
autograd::GradientSums gradient_sums(const Recipe& recipe);
// Whether a phase of its schedule begins by the noise of gradients.
bool measures_noise(const Recipe& recipe);
// True if everything is computed and kept in f32, by plain ops: the recipe "fp32" under any name.
bool is_plain_f32(const Recipe& recipe);
// Error naming the field if the choices contradict each other.
void check_valid(const Recipe& recipe);
// Also checks that the model has the modules that the quantisation names.
void check_valid(const Recipe& recipe, nn::Module& model);

// By name: those of recipe_names(), an alias O0 to O3 (Apex's levels: fp32, amp-fp16, fp16-master, fp16-pure), or
// "fp16-static:SCALE". Error listing the names and the nearest.
Recipe recipe(const std::string& name);
bool is_recipe(const std::string& name);  // true if recipe() knows it
// The built-in ones, in order, then the registered ones.
std::vector<std::string> recipe_names();
// Error for an invalid recipe, and for a name of another recipe. Not while other threads use recipes.
void register_recipe(const Recipe& recipe);

// JSON (amp/recipe_json.cpp): an object with the fields above as keys. A file may name a recipe to start from
// ("base": "amp-fp16"). Reading: Error naming the key and what is allowed for an unknown key, type or value, and for
// the name of another recipe that recipe() knows. Writing: Error for a rewrite, because that is code.
std::string to_json(const Recipe& recipe);
std::string to_json(const std::vector<Recipe>& recipes);
Recipe recipe_from_json(const std::string& text);
std::vector<Recipe> recipes_from_json(const std::string& text);  // one recipe or a list
std::vector<Recipe> load_recipes(const std::string& path);
void save_recipes(const std::string& path, const std::vector<Recipe>& recipes);

// Runs ops under the recipe while it lives. Modes half and pure also have a policy table: it casts contractions to the
// model's dtype, so inputs need no cast by hand, and losses to f32 (half) or to the model's dtype (pure).
class RecipeScope {
 public:
  // state: the quantisation's state, which delayed scaling keeps from step to step; by default a new one.
  explicit RecipeScope(const Recipe& recipe, Device device = Device::cpu(),
                       std::shared_ptr<QuantizationState> state = nullptr);

 private:
  MatmulPrecisionScope precision_;
  ResultScope results_;
  std::optional<Autocast> autocast_;
};
// The policy table of a recipe: that of its mode, with the recipe's edits.
PolicyTable policy_table(const Recipe& recipe);

// Makes the optimizer for a model's parameters (one group, with names) and the recipe's low-precision update. Built
// from the options of SGD, Adam or AdamW, whose .precision the recipe replaces, or from a function for your own
// optimizer.
struct MakeOptimizer : std::function<std::unique_ptr<optim::Optimizer>(std::vector<optim::ParamGroup> groups,
                                                                       const optim::UpdateOptions& precision)> {
  using Groups = std::vector<optim::ParamGroup>;
  using Made = std::unique_ptr<optim::Optimizer>;
  using function::function;
  MakeOptimizer(const optim::SGDOptions& options);    // NOLINT(google-explicit-constructor)
  MakeOptimizer(const optim::AdamOptions& options);   // NOLINT(google-explicit-constructor)
  MakeOptimizer(const optim::AdamWOptions& options);  // NOLINT(google-explicit-constructor)
};

struct RunOptions {
  double clip_norm = 0;    // clips gradients to this norm, at least 0; 0: no clipping
  std::uint64_t seed = 0;  // of stochastic rounding
  std::int64_t steps = 0;  // of the whole run; schedules with shares of a run need it
};

struct RunStep {
  Tensor loss;               // detached, unscaled; item() reads it
  optim::StepResult result;  // read on demand as well; always applied without a scaler
};

// Converts `model` and trains it with a recipe. The model stays where it is while the run lives: Error in a step if it
// was moved, cast or put on another device. Error for a model that another run trains, and for half parameters: modes
// full and autocast take none. Modes half and pure take those of the recipe's dtype; masters begin with their values.
class RecipeRun : Pinned {
 public:
  RecipeRun(const Recipe& recipe, nn::Module& model, const MakeOptimizer& make, const RunOptions& options = {});

  // One training step: forward under the recipe, backward of the scaled loss, clipping, update, gradients dropped. If
  // the loss or a gradient throws, nothing has happened: gradients, buffers, histories and default_generator() are as
  // before.
  RunStep step(const std::function<Tensor()>& loss);
  // The parts of step(): several forward-backward pairs accumulate before one update. Their gradients add up as they
  // are: weight the losses by what each divides by, or let dist::DataParallel do it, with a shard for each pair.
  Tensor forward(const std::function<Tensor()>& loss) const;  // what `loss` returns, computed under the recipe
  void backward(const Tensor& loss, autograd::GradOptions options = {});  // scales the loss first
  optim::StepResult update();
  // Without recording: for evaluation. Put the model into eval mode yourself.
  Tensor evaluate(const std::function<Tensor()>& output) const;
  RecipeScope scope() const;

  const Recipe& recipe() const { return recipe_; }
  // The recipe of the next step: another one only if recipe() has a schedule. Calls of update() count as steps.
  const Recipe& recipe_now() const { return now_; }
  // The phases of the schedule that have begun, in its order.
  std::vector<PhaseStart> phase_starts() const;
  // Null without Recipe::oscillation_reset.
  const OscillationWatch* oscillation() const { return oscillation_ ? &*oscillation_ : nullptr; }
  const RunOptions& options() const { return options_; }
  nn::Module& model() { return model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  bool scales() const { return scaler_.has_value(); }
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1; }
  // Null if nothing is quantised. Another object after a change of the schedule.
  QuantizationState* quantization() { return quantization_.get(); }
  optim::GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }

  // Model, optimizer with masters, scaler, histories. A run of the same recipe resumes with the same bits; the caller
  // saves default_generator(), which dropout and stochastic rounding draw from.
  StateDict state_dict();
  void load_state_dict(const StateDict& state);
  StateDict master_state_dict();  // the model in FP32

 private:
  void set_steps(std::int64_t steps);
  bool counts_steps() const;  // whether what a step does depends on its number

  void tell_purpose() const;  // to the quantisation: whether the model trains
  void check_model() const;
  Tensor run_forward(const std::function<Tensor()>& loss) const;

  void enter_phase();
  std::optional<std::size_t> watched_phase() const;  // the one whose `when` may begin it next
  struct Measured {
    std::size_t phase;
    double value;
  };
  std::optional<Measured> measure_for_phase();
  void note(const Measured& measured);
  StateDict phases_state() const;
  void load_phases(const StateDict& state);

  Recipe recipe_;
  Recipe now_;
  std::int64_t steps_ = 0;         // updates so far, which the quantisation is told
  std::vector<PhaseStart> begun_;  // phases with `when`
  std::int64_t below_ = 0;         // steps in a row in which the watched phase's quantity was below its threshold
  nn::Module& model_;
  RunOptions options_;
  Device device_;
  Tensor first_;  // of the model's parameters, and its dtype
  DType dtype_ = DType::f32;
  std::shared_ptr<optim::Optimizer> optimizer_;  // the model's trainer()
  std::optional<optim::GradScaler> scaler_;
  std::shared_ptr<QuantizationState> quantization_;
  std::optional<OscillationWatch> oscillation_;
  std::vector<Tensor> parameters_, buffers_;  // the model's
};

}  // namespace gradual::amp
