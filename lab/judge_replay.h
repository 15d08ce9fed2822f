// The replay of a recorded step, for judge(). Internal to it.
#pragma once

#include <fmt/format.h>

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../core/ops/ops.h"
#include "judge.h"
#include "judge_step.h"

namespace gradual::lab {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline Tensor in_f64(const Tensor& t) { return t.is_floating() ? cast(t.detach(), DType::f64) : t.detach(); }

inline bool floats(const Tensor& t) { return t.defined() && t.is_floating(); }

// The tensors of a call of a module, before it ("in") or behind it ("out").
struct Boundary {
  std::string side;
  std::string call;  // "blocks.0.fc", "blocks.0.fc@1" for its second call, "" for the model
  const pt2::ModuleRun* run = nullptr;

  std::string name(int place) const { return fmt::format("{}.{}:{}", side, place, call); }
  std::string gradient_name(int place) const { return fmt::format("{}.{}.grad:{}", side, place, call); }
};

// The result of a function that a module's own forward called.
struct OwnResult {
  std::string name;      // "op.0:h.0.attn/softmax"
  std::string gradient;  // "op.0.grad:h.0.attn/softmax"
  int id = 0;
};

// A value of the graph between two writes.
struct Version {
  int id = 0;
  int writer = -1;  // the step; -1: an input

  auto operator<=>(const Version&) const = default;
};

// A recorded gradient, of a version of a value.
struct RecordedGradient {
  std::string name;
  Tensor tensor;
};

// A step of forward, kept for backward.
struct Kept {
  int step = 0;
  ValueTensors inputs;
  std::vector<Tensor> errors;
  std::vector<int> writers;  // of the inputs
  std::vector<int> written;  // values
  bool unknown = false;      // an input is: the record does not say it
  Units units;
  Tensor mask;  // of a dropout: what it multiplied with
};

class Replay {
 public:
  // With `judges`, every recorded tensor is compared and taken over; else the record gives only what goes in.
  Replay(const pt2::Program& program, const StateDict& record, DType dtype, bool judges, const JudgeOptions& options);

  Judgement judgement();
  StateDict recorded();

 private:
  void set_state();
  void set_inputs();
  void find_boundaries();
  void find_own_results(const pt2::ModuleRun& run, const std::string& call);
  void note_dtype(const Boundary& boundary, const std::vector<int>& ids);
  void forward();
  void backward();
  void run_step(int index);
  void keep_step(int index, const ValueTensors& inputs, const Units& units);
  bool run_dropout(int index, const ValueTensors& inputs);
  void pass(const Boundary& boundary, const std::vector<int>& ids);
  void take(const std::string& name, const std::string& gradient, int id);
  bool other_input(const Tensor& recorded, int id);
  int best(const Tensor& recorded, const std::vector<int>& ids, const std::set<int>& used);
  void compare(const std::string& name, JudgedKind kind, const Tensor& recorded, const Tensor& computed,
               const Tensor& error, const std::vector<int>& segment);
  void name_ops(Judged& judged, const std::vector<int>& segment) const;
  void name_unmatched(Judged& judged, const std::vector<int>& segment) const;
  void compare_exactly(const std::string& name, const Tensor& recorded, const Tensor& computed, const Tensor& open,
                       const std::vector<int>& segment);
  void start_backward();
  void backward_step(const Kept& kept);
  void take_gradient(int id, int writer);
  void name_missing_part(int id, const Tensor& recorded);
  void compare_parameters();
  void compare_buffers();
  bool is_unknown(int id) const { return unknown_.contains(id) || contested_.contains(id); }
  Units units_for(const pt2::Step& step, int id) const;
  const Tensor* find(const std::string& name);
  std::vector<int> outputs_of_model() const;

  Tensor value(int id) {
    const Tensor* const t = pt2::tensor_of(run_.value(id));
    return t ? *t : Tensor();
  }
  Tensor in_dtype(const Tensor& t) const { return t.is_floating() ? cast(t.detach(), dtype_) : t.detach(); }

  const pt2::Program& p_;
  const StateDict& record_;
  DType dtype_;
  bool judges_;
  DType unrecorded_ = DType::f32;
  pt2::Run run_;
  std::unique_ptr<StepBounds> bounds_;
  std::map<int, std::vector<Boundary>> before_, behind_;  // by step
  std::map<int, OwnResult> own_results_;                  // by step
  std::set<int> unmatched_;                               // steps that the record has more or less often
  std::vector<Tensor> errors_;                            // by value; undefined: none
  std::vector<int> writer_;                               // by value
  std::vector<std::vector<int>> segments_;                // by value: the steps since the recorded tensors
  std::set<int> unknown_;                                 // values that random numbers decided
  std::map<int, DType> stored_;                           // how a value is recorded, known before it is computed
  std::vector<Kept> kept_;
  std::map<Version, std::vector<RecordedGradient>> recorded_gradients_;
  std::map<Version, Tensor> output_gradients_;
  std::map<int, Tensor> gradients_, gradient_errors_;  // by value
  std::map<int, std::vector<int>> gradient_segments_;
  std::map<int, std::vector<std::pair<int, Tensor>>> gradient_parts_;  // by value: what each step gave
  std::set<int> contested_;  // indices that a tie decided, and that are not recorded
  std::set<int> unknown_gradients_;
  std::map<int, Tensor> state_before_;
  std::map<int, Tensor> statistics_errors_;  // of running means and variances
  std::map<int, double> sampled_;            // by value: what sampled orders of its sums differ by
  std::set<std::string> used_;
  Judgement result_;
  StateDict written_;
};

}  // namespace gradual::lab
