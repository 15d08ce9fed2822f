// Single ops of forward in f32 under a recipe of half dtypes. The tape has them so, and backward follows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "../amp/outside_amp.h"

namespace gradual::inspect {

// Whether an op computes with its operands: no view, movement or comparison, nothing in place, no user's function.
bool computes(OpId op);

// A stage outside of Amp. An op of forward that `wanted` names computes in f32 if its result would have a half dtype:
// its operands are cast to f32, its result is f32. Other ops that compute get this result in the half dtype, so that
// f32 does not spread. What Amp rewrites or computes in another dtype by itself stays.
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

  DType half_of(const OpCall& call) const;
  DType made_for(const Tensor& t) const;
  Outputs in_f32(const OpCall& call, DType half);
  Outputs as_it_is(const OpCall& call);
  void note(const Outputs& out, DType half);

  std::shared_ptr<State> state_;
};

}  // namespace gradual::inspect
