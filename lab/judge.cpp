#include "judge.h"

#include <algorithm>
#include <utility>

#include "../amp/autocast.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "judge_replay.h"

namespace gradual::lab {

bool Judged::unusual() const {
  constexpr double kFar = 16;
  return explained() && sampled > 0 && difference > kFar * sampled;
}

Judgement Replay::judgement() {
  forward();
  pass({"out", "", p_.root.get()}, outputs_of_model());
  backward();
  compare_buffers();
  for (const auto& entry : record_)
    if (!used_.contains(entry.name)) result_.not_judged.push_back(entry.name);
  return std::move(result_);
}

StateDict Replay::recorded() {
  forward();
  pass({"out", "", p_.root.get()}, outputs_of_model());
  backward();
  compare_buffers();
  return std::move(written_);
}

const Judged* Judgement::first() const {
  const auto found = std::ranges::find_if(tensors, [](const Judged& j) { return !j.explained(); });
  return found == tensors.end() ? nullptr : &*found;
}

Judgement judge(const pt2::Program& program, const StateDict& record, const JudgeOptions& options) {
  return Replay(program, record, DType::f64, true, options).judgement();
}

StateDict record_step(const pt2::Program& program, const StateDict& record, DType dtype) {
  if (dtype == DType::f32 || dtype == DType::f64) return Replay(program, record, dtype, false, {}).recorded();
  if (dtype != DType::f16 && dtype != DType::bf16)
    throwf("a step is recorded in f32, f64, f16 or bf16, not in {}", to_string(dtype));
  const amp::Autocast scope({.dtype = dtype});
  return Replay(program, record, DType::f32, false, {}).recorded();
}

}  // namespace gradual::lab
