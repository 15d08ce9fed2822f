// Optimizer: parameter groups, FP32 masters and the other ways to update f16 and bf16 parameters, and the state that
// sgd.h and adam.h use. A step computes in f32 (f64 for f64 parameters) and rounds once when it stores.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/files/state_dict.h"
#include "../core/ops/attrs.h"
#include "../core/ops/op.h"
#include "../core/quantize/quantizer.h"
#include "../core/tensor/device_mirror.h"

namespace gradual::optim {

// How a parameter of f16 or bf16 is updated; f32 and f64 parameters are exact already and take no notice.
enum class LowPrecisionUpdate : std::uint8_t {
  none,       // computed in f32 from the parameter itself, rounded to nearest: updates below half an ulp vanish
  masters,    // an FP32 copy takes the update and is rounded into the parameter (Micikevicius et al. 2018)
  kahan,      // what rounding took off is kept in a second tensor of the parameter's dtype (Zamirai et al. 2020)
  stochastic  // rounded up or down by chance, so that small updates arrive on average
};
std::string_view name(LowPrecisionUpdate update);

struct UpdateOptions {
  LowPrecisionUpdate update = LowPrecisionUpdate::none;
  bool flat_masters = false;  // the masters of a group lie in one buffer; the same bits
  // Of momentum and moments: f32 if unset. f64 parameters have f64 always.
  std::optional<DType> state_dtype = {};
  // Of the first and the second moment (SGD's momentum is the first): where set, those of parameters with at least two
  // dims are kept as codes and scales, and are f32 only while their own parameter is updated. Not for f64 parameters,
  // nor with delayed scaling, a Hadamard transform or pure_arithmetic.
  std::optional<Quantizer> moments[2] = {};
  // Every operation of the update rounds to the parameter's dtype, as ops composed in that dtype would, and the state
  // has that dtype if state_dtype is unset: shows what goes wrong. With LowPrecisionUpdate::none only.
  bool pure_arithmetic = false;
  std::uint64_t seed = 0;  // of stochastic rounding: keyed by seed, step, parameter and element
};

// Parameters with their own rates. An optimizer reads the fields that its formula has and ignores the others.
struct ParamGroup {
  std::vector<Tensor> params = {};      // floating leaves; parameters without a gradient are passed over
  std::vector<std::string> names = {};  // none, or one for each parameter: for messages and exports
  // Unset: the optimizer's own value, taken when the group is added.
  std::optional<double> lr = {}, weight_decay = {}, momentum = {}, dampening = {}, beta1 = {}, beta2 = {}, eps = {};
  bool frozen = false;  // not stepped, not unscaled, not clipped
};
// A group of what Module::named_parameters returns.
ParamGroup named_group(const std::vector<std::pair<std::string, Tensor>>& named);

// What a step multiplies its gradients by, for GradScaler.
struct GradientScale {
  double inverse = 1;
  const float* on_device = nullptr;  // where it stands in the memory of the parameters' GPU; null: `inverse` holds
  // On that GPU, i64 [n]: where found[0] is not 0, nothing of the step happens; nobody waits to know.
  Tensor found = {};
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of all parameters that have a gradient, outside the graph: one pass over memory by one call for those of a
  // group that were updated equally often. Under an UnfusedScope
  // each parameter is a call of its own; the bits are the same.
  // Once a GPU skips steps by itself (GradScaler), or a step is recorded (cuda::Graph), the counts of steps live there too.
  void step(SourceLocation loc = SourceLocation::current()) { step_scaled({}, loc); }
  void zero_grad();  // drops the gradients, those of frozen groups too
  // Error: a parameter that is not floating, is no leaf, is in a group already or shares elements with one that is; a rate
  // out of range.
  void add_param_group(ParamGroup group);
  // Rates may be changed at any time; params may not (add_param_group).
  std::vector<ParamGroup>& param_groups() { return groups_; }
  const std::vector<ParamGroup>& param_groups() const { return groups_; }
  const UpdateOptions& update_options() const { return options_; }

  // Masters (LowPrecisionUpdate::masters). A parameter that is f32 when it is added has its values copied at once, so
  // that a model may be cast to half afterwards and the masters keep what the cast loses; the copies of parameters
  // that are still f32 at the first step are dropped. Where a parameter was changed by anyone else, its new values go
  // into the master, element by element: an element that still is its master's rounding keeps the master's bits.
  Tensor master(const Tensor& param);     // the parameter itself where it has none
  void keep_master(const Tensor& param);  // the caller has rounded the parameter further: its master stands

  // Rates, step counts, masters, compensations and moments; handles of the live tensors, clone() what must outlive
  // the next step. load checks everything before it changes anything.
  StateDict state_dict();
  void load_state_dict(const StateDict& state);

  // For GradScaler and clipping.
  // "fc1.weight", or "parameter 3" without names.
  const std::string& param_name(std::size_t index) const { return states_[index].name; }
  std::size_t param_count() const { return states_.size(); }  // of all groups; indices run through the groups in order
  Device device() const;                                      // of the first parameter
  // Whether all parameters lie on that GPU and have a fused row: then a step needs nothing of the host.
  bool skips_on(Device device) const;
  void step_scaled(const GradientScale& by, SourceLocation loc = SourceLocation::current());
  // Counts the non-finite elements of gradient i, times the inverse scale, into found[1 + i] and the sum into found[0]
  // (i64 [1 + param_count()], where the parameters are). write: replaces gradients by the products; those of f16 and bf16
  // parameters with an f32 path (masters, kahan, stochastic) go into FP32 gradients instead, which clipping and step()
  // then take, and .grad stays as it is. Returns the number of gradients. Error for f16 gradients without such a path.
  int unscale(const Tensor& found, const GradientScale& by, bool write);
  // The gradients that the next step takes, FP32 ones made where needed; frozen groups are left out.
  std::vector<Tensor> step_gradients();
  void forget_unscaled();  // the FP32 gradients are stale

 protected:
  static constexpr std::size_t kMaxState = 4;  // tensors of state for each parameter

  // An optimizer of your own (examples/own_optimizers.h): its kind, which a state dict names, and the names of its state tensors,
  // at most four. They have the parameter's shape and are zeros at first. It overrides update().
  Optimizer(std::string kind, std::vector<std::string> state, std::vector<ParamGroup> groups,
            const ParamGroup& defaults, const UpdateOptions& options)
      : Optimizer(Rule{std::move(kind), {}, std::move(state)}, std::move(groups), defaults, options) {}
  // One update of one parameter. The tensors are f32 (f64 for f64 parameters; the parameter's dtype under pure_arithmetic).
  struct Update {
    const Tensor& weight;     // the master where there is one, else the parameter's value
    const Tensor& gradient;   // unscaled and clipped; of the weight's shape; to be read only
    std::span<Tensor> state;  // in the order of their names: write in place, or assign
    const ParamGroup& group;  // its rates
    std::int64_t step;        // of this parameter, from 1
  };
  // The new weight, computed with ops: recording and autocast are off. Where it throws, the weight stays; state that was written in
  // place is not taken back. The base rounds the weight into the parameter as UpdateOptions
  // says, and state tensors to state_dtype.
  virtual Tensor update(const Update&);

  // An optimizer with a fused row, as SGD and Adam have one: the row that updates parameters (each from parameter, gradient,
  // master, compensation and state) and its attributes for parameters that were updated `steps` times before; where a GPU counts,
  // for more than none.
  struct Rule {
    std::string kind;
    std::optional<OpId> op;  // none: update() is called
    std::vector<std::string> moments;
  };
  Optimizer(Rule rule, std::vector<ParamGroup> groups, const ParamGroup& defaults, const UpdateOptions& options);
  virtual Attrs attrs(const ParamGroup& group, std::int64_t steps, const UpdateAttrs& how) const;
  virtual bool has_moments(const ParamGroup&) const { return true; }

  static std::vector<ParamGroup> one_group(const std::vector<Tensor>& params) { return {{.params = params}}; }

 private:
  // Which numbers a tensor held when we last looked.
  struct Stamp {
    Stamp() = default;
    explicit Stamp(const Tensor& t) : storage(t.unsafe_impl()->storage->id), version(t.version()) {}
    bool operator==(const Stamp&) const = default;
    std::uint64_t storage = 0;
    std::uint32_t version = 0;
  };
  // One parameter and what we keep for it.
  struct ParamState {
    Tensor param;
    std::size_t group = 0, index = 0;  // the index runs through all groups
    std::string name;
    std::int64_t steps = 0;    // taken so far
    Tensor master = {};        // f32; undefined where there is none
    Tensor compensation = {};  // LowPrecisionUpdate::kahan
    Tensor moments[kMaxState] = {};
    std::optional<QuantizedTensor> codes[2] = {};  // in the place of one of the first two
    Stamp written = {};  // the parameter after our last write: any other was written by somebody else
    // f32: what unscale_ or clipping made of the gradient of a f16 or bf16 parameter, and of which gradient.
    Tensor wide_gradient = {};
    enum class Wide : std::uint8_t { stale, copied, unscaled } wide = Wide::stale;
    Stamp wide_of = {};

    bool is_low() const { return is_half(param.dtype()); }
    bool wide_stands(const Tensor& gradient) const;
  };

  std::vector<ParamState>& states();  // Error where a group's params were edited
  std::span<const std::string> moments(const ParamState& s) const {
    return std::span(rule_.moments).first(has_moments(groups_[s.group]) ? rule_.moments.size() : 0);
  }
  struct Live {
    ParamState* state;
    Tensor gradient;
    bool alone;  // has a call of its own
  };
  // f(run) for each run of neighbours that belong to one call.
  template <class SameCall, class F>
  static void for_runs(std::span<const Live> all, const SameCall& same_call, const F& f) {
    for (std::size_t begin = 0, end = 1; begin < all.size(); begin = end++) {
      while (end < all.size() && same_call(all[end - 1], all[end])) ++end;
      f(all.subspan(begin, end - begin));
    }
  }
  // Of all groups that are not frozen; masters are in order then.
  std::vector<Live> live_gradients();
  void check_param(const Tensor& param, const std::vector<ParamState>& others) const;
  ParamState& state_of(const Tensor& param);
  bool codes_moments(const ParamState& s) const;
  static bool overwrites(const ParamState& s, std::size_t k);
  void prepare_state(ParamState& s);
  void encode_moments(ParamState& s, const DeviceStep& there) const;
  void step_run(std::span<const Live> run, const GradientScale& by, bool counts_there, SourceLocation loc);
  void step_by_ops(const Live& live, const GradientScale& by);
  void unscale_run(std::span<const Live> run, const Tensor& found, const GradientScale& by, bool write);
  std::vector<std::pair<std::string, Tensor*>> saved_tensors(ParamState& s) const;
  void load_param(ParamState& s, const StateDict& from) const;

  // Counts of steps, and in recorded steps the rates, in the memory of the parameters' GPU.
  static void need_no_capture(const std::string& who);  // what a recorded step makes, each replay would make anew
  bool count_on_device(bool skips);
  void take_steps(const void* counts);
  void upload_steps(void* to, Device device) const;
  void upload_rates();
  std::vector<Rates> rates() const;

  bool keeps_masters() const { return options_.update == LowPrecisionUpdate::masters; }
  void ensure_master(ParamState& s);
  void settle_masters();
  void flatten_masters(std::size_t group);
  bool needs_wide(const ParamState& s, const Tensor& gradient) const;
  Tensor& wide_gradient(ParamState& s);

  Rule rule_;
  ParamGroup defaults_;
  UpdateOptions options_;
  std::vector<ParamGroup> groups_;
  std::vector<Tensor> flat_masters_;  // one a group: the buffer behind its masters
  std::vector<ParamState> states_;
  DeviceMirror device_steps_{[this](void* to, Device device) { upload_steps(to, device); },
                             [this](const void* counts) { take_steps(counts); }};  // i64, of each parameter
  Tensor device_rates_;                // of recorded steps: a Rates of each group
  std::vector<Rates> uploaded_rates_;  // what stands there
};

}  // namespace gradual::optim
