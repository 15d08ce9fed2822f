// Optimizer: parameter groups, FP32 masters and other ways to update f16 and bf16 parameters, and optimizer state. A
// step computes in f32 (f64 for f64 parameters) and rounds once when it stores.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/files/state_dict.h"
#include "../core/kernels/update_rules.h"
#include "../core/ops/op.h"
#include "../core/quantize/quantizer.h"
#include "../core/tensor/device_mirror.h"

namespace gradual {
struct UpdateEvent;
}

namespace gradual::optim {

// How an f16 or bf16 parameter is updated. No effect on f32 and f64 parameters, except for feed_back().
enum class LowPrecisionUpdate : std::uint8_t {
  none,  // computed in f32 from the parameter itself, rounded to nearest: updates below half an ulp vanish
  // An FP32 copy takes the update and is rounded into the parameter (Micikevicius et al. 2018). Gradients of several
  // backwards, or of several uses, add up in f32 (autograd::set_gradient_sums).
  masters,
  kahan,       // a second tensor of the parameter's dtype keeps the rounding error (Zamirai et al. 2020)
  stochastic,  // rounded up or down at random, so that small updates apply on average
  // The rounding error is added to the momentum, which returns it over the next steps (ECO, arXiv 2601.22101): m +=
  // (1 - 1 / beta) / lr * error, for Adam times the denominator of its step. The error is that of f16 and bf16
  // parameters, and what feed_back() is told. For SGD with momentum, Adam and AdamW whose moments are not codes.
  eco
};
std::string_view to_string(LowPrecisionUpdate update);

struct UpdateOptions {
  LowPrecisionUpdate update = LowPrecisionUpdate::none;
  bool flat_masters = false;  // the masters of a group share one buffer; the bits are the same
  // Dtype of momentum and moments: f32 if unset. Always f64 for f64 parameters.
  std::optional<DType> state_dtype = {};
  // Quantizers of the first and second moment (SGD's momentum is the first). If set, moments of parameters with at
  // least two dims are stored as codes and scales, and are f32 only while their parameter is updated. Not for f64
  // parameters, delayed scaling, a Hadamard transform or pure_arithmetic.
  std::optional<Quantizer> moments[2] = {};
  // Every operation of the update rounds to the parameter's dtype, as separate ops in that dtype would. The state has
  // that dtype if state_dtype is unset. Demonstrates what goes wrong. Only with LowPrecisionUpdate::none.
  bool pure_arithmetic = false;
  std::uint64_t seed = 0;  // of stochastic rounding, which is keyed by seed, step, parameter and element
};

// Parameters with their own rates. An optimizer reads the fields that its formula uses and ignores the others.
struct ParamGroup {
  // Floating leaves. A step skips those without a gradient and those that require none (frozen ones), also if one has a
  // gradient from earlier.
  std::vector<Tensor> params = {};
  std::vector<std::string> names = {};  // none, or one for each parameter: for messages and exports
  // Unset: the optimizer's value at the time when the group is added.
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
  std::optional<double> momentum = {};
  std::optional<double> dampening = {};
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
  std::optional<double> eps = {};
  bool frozen = false;  // not stepped, not unscaled, not clipped
};
// Makes a group from the result of Module::named_parameters.
ParamGroup named_group(const std::vector<std::pair<std::string, Tensor>>& named);

// What low precision did to Adam's second moments v: elements of parameters, by the state between two steps. m is the
// first moment; |m| stays below sqrt(v), up to the start and rare gradients.
struct MomentFaults {
  std::int64_t elements = 0;  // checked
  // v is Inf or NaN: the parameter stands still for good.
  std::int64_t overflowed = 0;
  // v is 0 and m is not: the step is m / eps instead of m / sqrt(v).
  std::int64_t vanished = 0;
  // v is below m^2 / 1.44 and (1 - beta2) (m^2 - v) rounds away: steps stay more than 1.2 times too large.
  std::int64_t stuck = 0;
  std::string parameter = {};  // the one with the most faults

  std::int64_t all() const { return overflowed + vanished + stuck; }
};
// "of 4096 second moments 12 overflowed (no more steps), 30 vanished (steps of m / eps), 5 are stuck (steps too large);
// most in fc1.weight"; empty without faults.
std::string to_string(const MomentFaults& faults);

// The factor of the gradients in a step, for GradScaler.
struct GradientScale {
  double inverse = 1;
  const float* on_device = nullptr;  // the factor in the memory of the parameters' GPU; null: use `inverse`
  // On that GPU, i64 [n]: if found[0] is not 0, the step is skipped; the host does not wait for it.
  Tensor found = {};
};

class Optimizer : Pinned {
 public:
  virtual ~Optimizer() = default;

  // Updates all parameters that have a gradient, outside the graph. One call, with one pass over memory, updates all
  // parameters of a group with the same step count. Under an UnfusedScope each parameter has its own call; the bits are
  // the same. Once a GPU skips steps itself (GradScaler) or a step is recorded (cuda::Graph), step counts are in GPU
  // memory.
  void step(SourceLocation loc = SourceLocation::current()) { step_scaled({}, loc); }
  void zero_grad() {  // drops the gradients, those of frozen groups too
    for (const ParamState& s : states()) s.param.zero_grad();
    forget_unscaled();
  }
  // Error for a parameter that is not floating, not a leaf, already in a group, or shares elements with one in a group;
  // and for a rate out of range: momentum, dampening and betas lie in [0, 1), the others are at least 0 and finite. The
  // constructors also refuse parameters none of which requires a gradient.
  void add_param_group(ParamGroup group);
  // Rates may be changed at any time; params may not (add_param_group). If parameters are cast or moved, the state
  // follows at the next step.
  std::vector<ParamGroup>& param_groups() { return groups_; }
  const std::vector<ParamGroup>& param_groups() const { return groups_; }
  const UpdateOptions& update_options() const { return options_; }
  // What the formula depends on besides kind, rates and update_options(), by name: {"nesterov", "true"}. Ranks of
  // data-parallel training compare it. Override it in an optimizer of your own that has such options.
  using Choices = std::vector<std::pair<std::string, std::string>>;
  virtual Choices choices() const { return {}; }

  // Masters (LowPrecisionUpdate::masters). The values of an f32 parameter are copied when it is added, so the model may
  // then be cast to half and the masters keep full precision. Copies of parameters that are still f32 at the first step
  // are dropped. If other code changed a parameter, the master follows: only elements that differ from round(master)
  // overwrite the master.
  Tensor master(const Tensor& param);      // the parameter itself if it has none
  void keep_master(const Tensor& param) {  // the caller rounded the parameter further: keep its master
    ParamState& s = state_of(param);
    s.written = Stamp(s.param);
  }

  // With LowPrecisionUpdate::eco: the caller rounded the parameter after a step, and the value before is that much
  // larger than the one after (of the parameter's shape). Else, and before the first step, nothing happens.
  void feed_back(const Tensor& param, const Tensor& error);

  // Rates, step counts, masters, compensations and moments; handles of the live tensors, clone() what must outlive
  // the next step. load checks everything before it changes anything.
  StateDict state_dict();
  void load_state_dict(const StateDict& state);

  // For GradScaler and clipping.
  // "fc1.weight", or "parameter 3" without names.
  const std::string& param_name(std::size_t index) const { return states_[index].name; }
  std::size_t param_count() const { return states_.size(); }  // of all groups; indices run through the groups in order
  Device device() const { return states_.empty() ? Device::cpu() : states_[0].param.device(); }  // of the first one
  // True if all parameters are on that GPU and have a fused op; then a step does not depend on the host.
  bool skips_on(Device device) const;
  void step_scaled(const GradientScale& by, SourceLocation loc = SourceLocation::current());
  // Counts the non-finite elements of gradient i times the inverse scale into found[1 + i], and their sum into found[0]
  // (i64 [1 + param_count()], on the parameters' device). write: replaces gradients by the products. For f16 and bf16
  // parameters with an f32 path (masters, kahan, stochastic) the products go into FP32 gradients, which clipping and
  // step() then use, and .grad does not change. Returns the number of gradients. Error for f16 gradients without an f32
  // path.
  int unscale(const Tensor& found, const GradientScale& by, bool write);
  // The gradients that the next step uses, without frozen groups; makes FP32 ones if needed.
  std::vector<Tensor> step_gradients();
  void forget_unscaled() {  // the FP32 gradients are stale
    for (ParamState& s : states_) s.wide = ParamState::Wide::stale;
  }
  // Error naming the parameter if a backward has added to a gradient since unscale(.., write): that part has the scale.
  void check_no_gradient_since_unscale() const;

  // The second moments as they are now, of parameters that keep them in f16 or bf16 or as codes; f32 ones do not suffer
  // this. Waits for a GPU.
  MomentFaults moment_faults();

 protected:
  static constexpr std::size_t kMaxState = 4;  // tensors of state for each parameter

  // For your own optimizer (examples/own_optimizers.h), which overrides update(). kind: its name in state dicts. state:
  // the names of its state tensors, at most four. These have the parameter's shape and start as zeros.
  Optimizer(std::string kind, std::vector<std::string> state, std::vector<ParamGroup> groups,
            const ParamGroup& defaults, const UpdateOptions& options)
      : Optimizer(UpdateRule{.kind = std::move(kind), .moments = std::move(state)}, std::move(groups), defaults,
                  options) {}
  // One update of one parameter. The tensors are f32 (f64 for f64 parameters; the parameter's dtype under
  // pure_arithmetic).
  struct Update {
    const Tensor& weight;     // the master if there is one, else the parameter's value
    const Tensor& gradient;   // unscaled and clipped; of the weight's shape; read only
    std::span<Tensor> state;  // in the order of their names: write in place, or assign
    const ParamGroup& group;  // its rates
    std::int64_t step;        // of this parameter, from 1
    // Those of statistics(param), in its order: write in place, or assign.
    std::span<Tensor> statistics = {};
  };
  // Returns the new weight, computed with ops; recording and autocast are off. If it throws, the weight does not
  // change, but state written in place is not restored. The base class rounds the weight into the parameter as
  // UpdateOptions says, and state tensors to state_dtype.
  virtual Tensor update(const Update&);
  // More state of a parameter: tensors of any shape, which start as zeros. They are kept in f32 (f64 for f64
  // parameters), whatever state_dtype, moments, pure_arithmetic and a recipe's `result` say. Under such a recipe ops of
  // update() round what they give; without a Results stage (StageScope, core/ops/dispatch.h) they do not. Names differ
  // from each other and from those of the state tensors; else an Error at the step.
  struct Statistic {
    std::string name;
    Shape sizes;
  };
  virtual std::vector<Statistic> statistics(const Tensor& /*param*/) const { return {}; }

  // For an optimizer with a fused op, such as SGD and Adam: the op that updates parameters (inputs of each: parameter,
  // gradient, master, compensation and state), and its attributes for parameters that were updated `steps` times before
  // (if a GPU counts steps, for any number above 0).
  struct UpdateRule {
    std::string kind;
    std::optional<OpId> op = {};  // none: update() is called
    std::vector<std::string> moments = {};
    std::function<Attrs(const Rates& rates, std::int64_t steps, const UpdateAttrs& how)> attrs = {};  // with `op`
  };
  // UpdateRule::attrs of an op with attributes A, whose formula has one flag.
  template <class A> static auto attrs_of(bool flag) {
    return [flag](const Rates& rates, std::int64_t steps, const UpdateAttrs& how) -> Attrs {
      A attrs{rates, flag, how};
      update_rules::count_steps(attrs, steps);
      return attrs;
    };
  }
  Optimizer(UpdateRule rule, std::vector<ParamGroup> groups, const ParamGroup& defaults, const UpdateOptions& options);
  virtual bool has_moments(const ParamGroup&) const { return true; }

  static std::vector<ParamGroup> one_group(const std::vector<Tensor>& params);

 private:
  // Identifies the contents of a tensor at the last check.
  struct Stamp {
    Stamp() = default;
    explicit Stamp(const Tensor& t) : storage(t.unsafe_impl()->storage->id), version(t.version()) {}
    bool operator==(const Stamp&) const = default;
    std::uint64_t storage = 0;
    std::uint32_t version = 0;
  };
  // One parameter and its state.
  struct ParamState {
    Tensor param;
    // the index runs through all groups
    std::size_t group = 0;
    std::size_t index = 0;
    std::string name;
    std::int64_t steps = 0;    // taken so far
    Tensor master = {};        // f32; undefined if there is none
    Tensor compensation = {};  // LowPrecisionUpdate::kahan
    Tensor moments[kMaxState] = {};
    std::vector<Tensor> statistics = {};           // in the order of statistics(param)
    std::optional<QuantizedTensor> codes[2] = {};  // in the place of one of the first two
    Stamp written = {};  // the parameter after the optimizer's last write; if it differs, other code changed it
    // f32: the unscaled or clipped gradient of an f16 or bf16 parameter, and the gradient it was made from.
    Tensor wide_gradient = {};
    enum class Wide : std::uint8_t { stale, copied, unscaled } wide = Wide::stale;
    Stamp wide_of = {};
    std::uint32_t received = 0;  // gradients_received() when the gradient was unscaled

    bool is_low() const { return is_half(param.dtype()); }
    bool wide_stands(const Tensor& gradient) const;
  };

  std::vector<ParamState>& states();  // Error if a group's params were edited
  std::span<const std::string> moments(const ParamState& s) const {
    return std::span(update_rule_.moments).first(has_moments(groups_[s.group]) ? update_rule_.moments.size() : 0);
  }
  struct Live {
    ParamState* state;
    Tensor gradient;
    bool alone;  // has a call of its own
  };
  // Calls f(run) for each run of adjacent parameters that share a call.
  template <class SameCall, class F>
  static void for_runs(std::span<const Live> all, const SameCall& same_call, const F& f) {
    for (std::size_t begin = 0, end = 1; begin < all.size(); begin = end++) {
      while (end < all.size() && same_call(all[end - 1], all[end])) ++end;
      f(all.subspan(begin, end - begin));
    }
  }
  // The gradients of all groups that are not frozen. Also brings masters up to date.
  std::vector<Live> live_gradients();
  void check_param(const Tensor& param, const std::vector<ParamState>& others) const;
  ParamState& state_of(const Tensor& param);
  void prepare_state(ParamState& s);
  void encode_moments(ParamState& s, const DeviceStep& there) const;
  void check_feedback() const;
  void add_to_momentum(const ParamState& s, std::int64_t steps, const Tensor& error) const;
  std::vector<UpdateEvent> events_of(std::span<const Live> run, std::span<const Tensor* const> inputs) const;
  Tensor stored_next(const ParamState& s, const Tensor& v, const Tensor& g, double beta2) const;
  void step_run(std::span<const Live> run, const GradientScale& by, bool counts_there, SourceLocation loc);
  void step_by_ops(const Live& live, const GradientScale& by);
  // The state tensors and statistics of a parameter, with the dtype in which update() gets them.
  struct StatePlace {
    std::string_view name;
    Tensor place;
    DType dtype;
  };
  std::vector<StatePlace> state_places(const ParamState& s, DType dtype) const;
  // statistics(param); Error if a name is that of other state.
  std::vector<Statistic> named_statistics(const Tensor& param) const;
  void unscale_run(std::span<const Live> run, const Tensor& found, const GradientScale& by, bool write);
  struct SavedTensor {
    std::string key;
    Tensor* place;
    Shape sizes;
  };
  std::vector<SavedTensor> saved_tensors(ParamState& s) const;
  void check_kept(const StateDict& from, const std::string& name, std::span<const SavedTensor> places) const;
  void load_param(ParamState& s, const StateDict& from) const;

  // Counts of steps, and in recorded steps the rates, in the memory of the parameters' GPU.
  static void need_no_capture(const std::string& who);  // Error in a recording: each replay would make this state anew
  bool count_on_device(bool skips);
  void take_steps(const void* counts) {
    for (ParamState& s : states_) s.steps = static_cast<const std::int64_t*>(counts)[s.index];
  }
  void upload_steps(void* to, Device device) const;
  void upload_rates();
  static Rates rates_of(const ParamGroup& g) {  // 0 where the formula has none
    const auto of = [](const std::optional<double>& rate) { return rate.value_or(0); };
    return {of(g.lr), of(g.weight_decay), of(g.momentum), of(g.dampening), of(g.beta1), of(g.beta2), of(g.eps)};
  }

  bool keeps_masters() const { return options_.update == LowPrecisionUpdate::masters; }
  void ensure_master(ParamState& s);
  void settle_masters();
  void flatten_masters(std::size_t group);
  bool needs_wide(const ParamState& s, const Tensor& gradient) const {
    return is_half(gradient.dtype()) && s.is_low() && options_.update != LowPrecisionUpdate::none;
  }
  Tensor& wide_gradient(ParamState& s);

  UpdateRule update_rule_;
  ParamGroup defaults_;
  UpdateOptions options_;
  std::vector<ParamGroup> groups_;
  std::vector<Tensor> flat_masters_;  // per group: the buffer of its masters
  std::vector<ParamState> states_;
  DeviceMirror device_steps_{[this](void* to, Device device) { upload_steps(to, device); },
                             [this](const void* counts) { take_steps(counts); }};  // i64, one count per parameter
  Tensor device_rates_;                // for recorded steps: one Rates per group
  std::vector<Rates> uploaded_rates_;  // the values that device_rates_ holds
};

}  // namespace gradual::optim
