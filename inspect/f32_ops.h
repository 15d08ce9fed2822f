// Single ops of forward in f32 under a recipe of half dtypes. The tape has them so, and backward follows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "../amp/outside_amp.h"
#include "../core/ops/fusions.h"

namespace gradual::inspect {

// Whether an op computes with its operands: no view, movement or comparison, nothing in place, no user's function.
bool computes(OpId op);

// A stage outside of Amp. An op of forward that `wanted` names computes in f32 if its first result would have a half
// dtype, or that of the first part of a fusion: its operands are cast to f32, its results are f32. Results that would
// be half are kept in f32, and only by these ops, views and movements (scatter_add and index_add count as such). All
// others get them rounded to the half dtype: ops that compute, comparisons, casts, users' functions, operands of ops in
// place and movements whose own result would be f32. So f32 does not spread. An op in place on such a result writes
// f32. What Amp rewrites or computes in another dtype by itself stays. Not seen is x.to(DType::f32) of such a result,
// which already is f32: with a number behind it the recipe would have f32, and here it counts as half.
//
// State lives as long as one scope (InterventionScope), and is not locked: threads that share it run one at a time, as
// those of a lockstep do.
class F32Ops final : public amp::OutsideAmp {
 public:
  using Wanted = std::function<bool(const OpCall& call)>;
  // below: the chain's Amp stage, or null.
  F32Ops(std::shared_ptr<Interceptor> below, Wanted wanted)
      : F32Ops(std::move(below), std::make_shared<State>(State{std::move(wanted), {}})) {}

  std::shared_ptr<OutsideAmp> over(std::shared_ptr<Interceptor> region) const override;
  Outputs call(const OpCall& call) override;

 private:
  struct State {
    Wanted wanted;
    std::map<std::uint64_t, DType> made;  // storages of f32 results, and the dtypes that they would have
  };
  F32Ops(std::shared_ptr<Interceptor> below, std::shared_ptr<State> state)
      : OutsideAmp(std::move(below)), state_(std::move(state)) {}

  // The inputs and the results of a call under the recipe alone. Inputs have its dtypes; their numbers are not read.
  struct Recipe {
    std::vector<Tensor> inputs = {};
    OutSpec results[kMaxOutputs] = {};
  };
  Recipe recipe_of(const OpCall& call) const;
  void apply_policy(const OpCall& call, std::vector<Tensor>& inputs) const;
  bool is_left_to_amp(OpId op) const;
  bool runs_whole(const Fusion& fusion) const;
  DType made_for(const Tensor& t) const;
  bool any_made(const OpCall& call) const;
  Outputs below_amp(const OpCall& call) const;
  Outputs in_f32(const OpCall& call, const Recipe& recipe);
  Outputs as_it_is(const OpCall& call) const;

  std::shared_ptr<State> state_;
};

}  // namespace gradual::inspect
