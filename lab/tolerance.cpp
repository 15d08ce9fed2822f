#include "tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/ops/fusions.h"
#include "../core/ops/ops.h"
#include "../core/support/generator.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "../inspect/mirror.h"
#include "../inspect/numbers.h"
#include "judge_bounds.h"
#include "ordered_op.h"
#include "quantizer_bounds.h"
#include "step_replay.h"
#include "student_t.h"

namespace gradual::lab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- which tensors of a step have a tolerance ------------------------------------------------------------------------

// A tensor of the step, known after an op.
struct Place {
  std::string name;
  ToleratedKind kind = ToleratedKind::activation;
  RecordedTensor tensor;
  int output = -1;             // of the op; -1: it is an input, which the op has read or written
  std::size_t input = 0;       // of the op, then
  RecordedTensor before = {};  // of an update: the parameter
};

// Statistics of norms and logarithms of attention's sums are no results of a layer.
int shown_outputs(const RecordedOp& op) {
  const bool has_statistics = op.op == OpId::layer_norm || op.op == OpId::batch_norm || op.op == OpId::rms_norm ||
                              op.op == OpId::flash_attention;
  return has_statistics || op.kind == Recorded::quantizer ? 1 : kMaxOutputs;
}

// The name of a quantizer's values; a rewritten op has that of the op that it replaces.
constexpr std::string_view kQuantized = "quantize";

// Of a rewritten op its quantised operands and its result.
bool has_places(const RecordedOp& op) {
  if (op.phase == Phase::optimizer) return false;
  switch (op.kind) {
    case Recorded::quantizer:
    case Recorded::rewritten_ends: return true;
    case Recorded::rewritten_begins: return false;
    case Recorded::op: break;
  }
  return !op.inside && op_info(op.op).kind != OpKind::InPlace;
}

// Names the places of a step, op by op.
class Places {
 public:
  std::vector<Place> of(const RecordedOp& op) {
    if (op.op == OpId::sgd_step_ || op.op == OpId::adam_step_) return of_update(op);
    std::vector<Place> all;
    if (!has_places(op)) return all;
    for (int k = 0; k < shown_outputs(op); ++k) {
      const RecordedTensor& t = op.outputs[static_cast<std::size_t>(k)];
      if (!t.is_floating()) continue;
      std::string name = op.module.empty() ? "" : op.module + ".";
      name += op.kind == Recorded::quantizer ? kQuantized : to_string(op.op);
      if (k > 0) name += "." + std::to_string(k);
      if (op.phase == Phase::backward) name = "backward:" + name;
      const int count = ++counts_[name];
      if (count > 1) name += "#" + std::to_string(count);
      const auto what = op.phase == Phase::backward ? ToleratedKind::gradient : ToleratedKind::activation;
      all.push_back({name, what, t, k});
    }
    return all;
  }

 private:
  static std::vector<Place> of_update(const RecordedOp& op) {
    const bool master = op.inputs[inspect::kMaster].defined();
    const std::size_t written = master ? inspect::kMaster : inspect::kWeight;
    const RecordedTensor& weight = op.inputs[written];
    return {{"grad:" + op.parameter, ToleratedKind::parameter_gradient, op.inputs[inspect::kGradient], -1,
             inspect::kGradient},
            {"after:" + op.parameter, ToleratedKind::update, weight, -1, written, weight}};
  }

  std::map<std::string, int> counts_;
};

// What the program had there, f64.
const Tensor& given_at(const Place& place, const RecordedOp& op) {
  return place.output >= 0 ? op.given[static_cast<std::size_t>(place.output)] : op.inputs_after[place.input];
}

double largest(const Tensor& t) { return t.numel() == 0 ? 0 : max(abs(t)).item(); }

// Of the elements' differences: the largest, and the largest one over what is allowed, which is Inf for NaN and where
// nothing is allowed, and 0 where everything is.
struct Differences {
  double largest = 0;
  double over_always = 0;
  double over_probably = 0;
};

// |a - b|; NaN where only one is finite.
double apart(double a, double b) {
  if (inspect::same_number(a, b)) return 0;
  const double d = std::abs(a - b);
  return std::isinf(d) ? std::numeric_limits<double>::quiet_NaN() : d;
}

double over(double difference, double allowed) {
  if (difference == 0 || std::isinf(allowed)) return 0;
  return std::isnan(difference) || !(allowed > 0) ? kInfinity : difference / allowed;
}

void check_sizes(const Tolerated& t, const Shape& sizes) {
  if (sizes != t.sizes) throwf("tolerance: '{}' is {}, in the step {}", t.name, to_string(sizes), to_string(t.sizes));
}

// All of the same sizes, f64.
Differences differences(const Tensor& values, const Tolerated& t) {
  const Tensor in_order = contiguous(values);
  const double* given = in_order.data<double>();
  const double* reference = t.reference.data<double>();
  const double* always = t.always.data<double>();
  const double* probably = t.probably.data<double>();
  Differences d;
  for (std::int64_t i = 0; i < in_order.numel(); ++i) {
    if (given[i] == reference[i]) continue;  // most of them
    const double one = apart(given[i], reference[i]);
    d.largest = std::isnan(one) ? one : std::max(d.largest, one);
    d.over_always = std::max(d.over_always, over(one, always[i]));
    d.over_probably = std::max(d.over_probably, over(one, probably[i]));
  }
  return d;
}

// All elements of a step are within this factor times their root mean square errors of the simulations with a
// probability of 99%, if errors of ops are independent and normal: Student's t of each, with so many degrees of
// freedom.
double factor_for(const std::vector<RecordedOp>& ops) {
  constexpr double kMayFail = 0.01;
  double elements = 1;
  for (const RecordedOp& op : ops)
    for (const RecordedTensor& t : op.outputs)
      if (t.defined()) elements += static_cast<double>(t.numel());
  return student_quantile(kMayFail / (2 * elements), StepReplay::kSimulations);
}

// The largest difference.
double compare(Tolerated& t, const Tensor& values) {
  check_sizes(t, values.sizes());
  const Differences d = differences(values, t);
  t.worst = std::max(t.worst, d.over_always);
  t.worst_probably = std::max(t.worst_probably, d.over_probably);
  return d.largest;
}

// --- the reference, its bounds, and samples --------------------------------------------------------------------------

class Analysis {
 public:
  Analysis(const std::vector<RecordedOp>& ops, const ToleranceOptions& options, double factor)
      : ops_(ops), options_(options), factor_(factor) {}

  std::vector<Tolerated> run() {
    find_bounds();
    for (int order = 0; order < options_.orders; ++order) sample(order);
    return std::move(rows_);
  }

 private:
  void find_bounds() {
    std::vector<ErrorKind> kinds{ErrorKind::always, ErrorKind::likely};
    if (options_.of_norms) kinds.push_back(ErrorKind::of_norms);
    StepReplay replay(kinds, factor_);
    Places places;
    for (const RecordedOp& op : ops_) {
      const std::vector<Place> here = places.of(op);
      std::vector<Tensor> before;
      for (const Place& p : here) before.push_back(p.before.defined() ? start_of(replay, op, p.before) : Tensor());
      replay.run(op);
      for (std::size_t i = 0; i < here.size(); ++i) add_row(replay, op, here[i], before[i]);
    }
  }

  static Tensor start_of(const StepReplay& replay, const RecordedOp& op, const RecordedTensor& t) {
    for (const auto& [id, numbers] : op.starts)
      if (id == t.storage) return contiguous(as_strided(numbers, t.sizes, t.strides, t.offset)).clone();
    return replay.value(t);
  }

  void add_row(const StepReplay& replay, const RecordedOp& op, const Place& place, const Tensor& before) {
    Tolerated t;
    t.name = place.name;
    t.kind = place.kind;
    t.cast = op.op == OpId::cast;
    t.quantized = op.kind == Recorded::quantizer;
    t.dtype = place.tensor.dtype;
    t.sizes = place.tensor.sizes;
    t.reference = contiguous(replay.value(place.tensor));
    t.always = contiguous(replay.error(place.tensor, ErrorKind::always));
    t.probably = contiguous(minimum(replay.error(place.tensor, ErrorKind::likely), t.always));
    t.size = largest(before.defined() ? sub(t.reference, before) : t.reference);
    t.bound = largest(t.always);
    t.tolerance = largest(t.probably);
    if (options_.of_norms) t.of_norms = largest(replay.error(place.tensor, ErrorKind::of_norms));
    if (place.output >= 0) {
      const auto output = static_cast<std::size_t>(place.output);
      const Tensor& local = replay.local_error(output);
      if (local.defined()) t.local = largest(local);
    }
    t.own = compare(t, given_at(place, op));
    rows_.push_back(std::move(t));
  }

  void sample(int order) {
    OrderedStep step(seed_of_order(order), {.parts = options_.parts});
    Places places;
    std::size_t row = 0;
    for (const RecordedOp& op : ops_) {
      step.run(op);
      for (const Place& place : places.of(op)) {
        Tolerated& t = rows_[row];
        t.sampled = std::max(t.sampled, compare(t, step.value(place.tensor)));
        ++row;
      }
    }
  }

  const std::vector<RecordedOp>& ops_;
  const ToleranceOptions& options_;
  double factor_;
  std::vector<Tolerated> rows_;
};

// The op whose output is the gradient of a split op's input.
struct GradientOp {
  OpId of;
  int input;
  OpId op;
  int output = 0;
};
constexpr GradientOp kGradientOps[] = {
    {OpId::linear, 0, OpId::matmul},
    {OpId::linear, 1, OpId::matmul},
    {OpId::linear, 2, OpId::sum},
    {OpId::matmul, 0, OpId::matmul},
    {OpId::matmul, 1, OpId::matmul},
    {OpId::conv2d, 0, OpId::conv2d_backward_input},
    {OpId::conv2d, 1, OpId::conv2d_backward_weight},
    {OpId::conv2d, 2, OpId::sum},
    {OpId::layer_norm, 0, OpId::layer_norm_backward, 0},
    {OpId::layer_norm, 1, OpId::layer_norm_backward, 1},
    {OpId::layer_norm, 2, OpId::layer_norm_backward, 2},
    {OpId::rms_norm, 0, OpId::rms_norm_backward, 0},
    {OpId::rms_norm, 1, OpId::rms_norm_backward, 1},
};

// matmul gives the gradient of a matrix for each matrix of its first input; a sum follows, which keeps the dims.
bool is_added_up(const SplitGradient& g) { return g.op == OpId::matmul && g.input == 1 && g.dims > 2; }

// As the op gives it: of a vector, which matmul takes for a row, a row.
Tensor as_given(const SplitGradient& g) {
  return g.op == OpId::matmul && g.gradient.dim() == 1 ? g.gradient.reshape({1, -1}) : g.gradient;
}

// Records a step under a split as if it were whole: of ops in parts the whole results, and of their backward the
// gradients of inputs; no casts. Of a module with an op in parts that is made of several ops, nothing of backward.
class SplitStep final : public Observer, public SplitWatcher {
 public:
  explicit SplitStep(RecordedOps& ops) : ops_(ops) {}

  void before(const OpCall& call, const CallRecord& record) override {
    if (counts(call)) ops_.before(call, record);
  }
  void after(const OpCall& call, const gradual::Outputs& out, const CallRecord& record) override {
    if (counts(call)) ops_.after(call, out, record);
  }
  void quantized(const QuantizerCall& call) override {
    if (inside_ == 0 && context().phase != Phase::backward) ops_.quantized(call);
  }
  void begins() override { ++inside_; }
  void ends(const OpCall& call, const gradual::Outputs& whole) override {
    --inside_;
    if (op_info(call.op).kind == OpKind::Composite) hidden_.insert(context().module);
    else record(call, whole);
  }
  void backward_begins() override { in_backward_ = true; }
  void backward_gives(const SplitGradient& g) override {
    in_backward_ = false;
    const auto by = std::ranges::find_if(kGradientOps,
                                         [&](const GradientOp& one) { return one.of == g.op && one.input == g.input; });
    if (by == std::end(kGradientOps) || !g.gradient.defined() || hidden_.contains(context().module)) return;
    gradual::Outputs out;
    out[by->output] = as_given(g);
    record_gradient(by->op, out);
    if (!is_added_up(g)) return;
    uncompared_.insert(&ops_.all().back() - ops_.all().data());
    Shape sizes = Shape::filled(g.dims - 2, 1);
    for (const std::int64_t size : g.gradient.sizes()) sizes.push_back(size);
    record_gradient(OpId::sum, {{g.gradient.reshape(sizes)}});
  }

  // What was recorded at this place has another form in the whole step.
  bool is_uncompared(std::ptrdiff_t place) const { return uncompared_.contains(place); }

 private:
  bool counts(const OpCall& call) const {
    if (inside_ > 0 || call.op == OpId::cast || call.op == OpId::custom) return false;
    return context().phase != Phase::backward || (!in_backward_ && !hidden_.contains(context().module));
  }
  void record(const OpCall& call, const gradual::Outputs& out) {
    CallRecord record;
    record.context = context();
    record.op = call.op;
    ops_.before(call, record);
    ops_.after(call, out, record);
  }

  void record_gradient(OpId op, const gradual::Outputs& out) {
    const Attrs none = {};
    record({op, TensorRefs(nullptr, 0), &none, {}}, out);
  }

  RecordedOps& ops_;
  int inside_ = 0;
  bool in_backward_ = false;
  std::set<std::string, std::less<>> hidden_;  // modules
  std::set<std::ptrdiff_t> uncompared_;        // places of ops
};

Tensor in_f32_rounded_up(const Tensor& t) {
  const Tensor exact = contiguous(t);
  Tensor up = cast(exact, DType::f32).clone();
  float* const to = up.data<float>();
  const double* const from = exact.data<double>();
  for (std::int64_t i = 0; i < up.numel(); ++i)
    if (to[i] < from[i]) to[i] = std::nextafter(to[i], std::numeric_limits<float>::infinity());
  return up;
}

// Sums in directed, odd or random roundings err by (1 + u)^n - 1 of their terms, others by at most n u.
void check_sums(const RecordedOp& op) {
  if (op.kind != Recorded::op || !op.accumulator) return;
  const RoundingMode mode = op.accumulator->rounding.mode;
  const bool known =
      mode == RoundingMode::nearest_even || mode == RoundingMode::nearest_away || mode == RoundingMode::toward_zero;
  if (!known)
    throwf(
        "tolerance: {} in '{}' adds up in {}, for which there are no bounds; sums that round to nearest or toward "
        "zero have",
        to_string(op.op), op.module, to_string(*op.accumulator));
  const bool attention = op.op == OpId::flash_attention || op.op == OpId::flash_attention_backward;
  if (attention && op.accumulator->lowest && op.accumulator->adds != GroupSum::exact)
    throwf(
        "tolerance: {} in '{}' adds up in {}, which takes subnormal operands for others: attention in one op has no "
        "bounds then, products and sums have",
        to_string(op.op), op.module, to_string(*op.accumulator));
}

void check(const ToleranceOptions& options) {
  if (options.orders < 1) throwf("tolerance: {} orders; at least 1 is needed", options.orders);
  if (options.parts < 0) throwf("tolerance: {} parts of a sum; at least 0 are allowed", options.parts);
}

// A study holds the default generator: it ends here.
std::unique_ptr<RecordedOps> recorded_step(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                                           const StudyOptions& options) {
  Study study(make_model, data, recipe, options);
  auto ops = std::make_unique<RecordedOps>(study.model());
  double loss = 0;
  {
    const UnfusedScope parts;
    const ObserverScope scope(*ops);
    loss = study.step().loss.item();
  }
  if (!std::isfinite(loss))
    throwf("tolerance: the loss of {} at step {} is {}; an earlier --step has tolerances", recipe.name, options.step,
           std::isnan(loss) ? std::fabs(loss) : loss);
  return ops;
}

// Those that the program had at the places of the ops for which wanted(op).
template <class F> StateDict values_of_places(const RecordedOps& ops, const F& wanted) {
  StateDict values;
  Places places;
  for (const RecordedOp& op : ops.all())
    for (const Place& place : places.of(op))
      if (wanted(op)) values.set(place.name, given_at(place, op));
  return values;
}

void compare_split(Tolerances& t, const StateDict& values) {
  const inspect::Unseen unseen;
  for (Tolerated& one : t.tensors)
    if (values.contains(one.name)) one.split = compare(one, inspect::f64_of(values.tensor(one.name)));
}

}  // namespace

std::string_view to_string(ToleratedKind kind) {
  return enum_name(kind, {"activation", "gradient", "parameter gradient", "update"});
}

std::vector<Exceeded> Tolerances::exceeded(const StateDict& values) const {
  const inspect::Unseen unseen;
  std::vector<Exceeded> all;
  for (const StateDict::Entry& entry : values) {
    const std::string& name = entry.name;
    const Tensor value = values.tensor(name);
    const auto found = std::ranges::find(tensors, name, &Tolerated::name);
    if (found == tensors.end()) throwf("tolerance: the step has no tensor '{}'", name);
    check_sizes(*found, value.sizes());
    const Differences d = differences(inspect::f64_of(value), *found);
    if (d.over_probably > 1) all.push_back({name, d.largest, d.over_probably, d.over_always > 1});
  }
  return all;
}

double Tolerances::median_ratio(double Tolerated::*bound) const {
  std::vector<double> ratios;
  for (const Tolerated& t : tensors)
    if (t.sampled > 0) ratios.push_back(t.*bound / t.sampled);
  if (ratios.empty()) return 0;
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
  std::ranges::nth_element(ratios, middle);
  return *middle;
}

Tolerances tolerance_of(const RecordedOps& ops, const ToleranceOptions& options) {
  check(options);
  for (const RecordedOp& op : ops.all()) {
    check_sums(op);
    if (op.kind == Recorded::quantizer) check_quantizer(op);
  }
  const inspect::Unseen unseen;
  Tolerances t{.orders = options.orders, .factor = factor_for(ops.all())};
  t.tensors = Analysis(ops.all(), options, t.factor).run();
  return t;
}

Tolerances tolerance(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                     const ToleranceOptions& options) {
  check(options);
  if (options.split) check_valid(*options.split, recipe.quantization);
  Tolerances t = tolerance_of(*recorded_step(make_model, data, recipe, options.study), options);
  t.recipe = recipe.name;
  t.data = data.name;
  t.step = options.study.step;
  if (options.split) compare_split(t, values_under(*options.split, make_model, data, recipe, options.study));
  if (options.split) t.split = describe(*options.split);
  return t;
}

StateDict values_of(const RecordedOps& ops) {
  return values_of_places(ops, [](const RecordedOp&) { return true; });
}

StateDict values_under(const Split& split, const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                       const StudyOptions& options) {
  check_valid(split, recipe.quantization);
  Study study(make_model, data, recipe, options);
  RecordedOps ops(study.model());
  SplitStep step(ops);
  {
    const UnfusedScope parts;
    const SplitScope scope(split, study.model(), &step);
    const ObserverScope observed(step);
    study.step();
    scope.check_used();
  }
  // Parts of an op round operands of their own, so that the quantised numbers of a split have other names.
  return values_of_places(ops, [&](const RecordedOp& op) {
    return op.kind != Recorded::quantizer && !step.is_uncompared(&op - ops.all().data());
  });
}

StateDict golden_of(const Tolerances& t) {
  const inspect::Unseen unseen;
  StateDict golden;
  for (const Tolerated& one : t.tensors) {
    golden.set(one.name, cast(one.reference, one.dtype));
    golden.set(one.name + ".tolerance", in_f32_rounded_up(one.probably));
  }
  return golden;
}

}  // namespace gradual::lab
