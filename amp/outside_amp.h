// A stage outside of Amp: it receives the calls of the program before they are cast or rewritten.
#pragma once

#include <memory>
#include <utility>

#include "../core/ops/dispatch.h"
#include "../core/ops/operand_policy.h"
#include "policy.h"

namespace gradual::amp {

// It is installed as the chain's Amp stage. A region of autocast (autocast.h) that begins inside of it runs below it:
// Autocast then installs over(region).
struct OutsideAmp : Interceptor, OperandPolicy, std::enable_shared_from_this<OutsideAmp> {
  explicit OutsideAmp(std::shared_ptr<Interceptor> below) : amp(std::move(below)) {}
  std::shared_ptr<Interceptor> share() override { return shared_from_this(); }
  DType operand_dtype(OpId like, const Tensor& x) const override;
  // The same stage over another region.
  virtual std::shared_ptr<OutsideAmp> over(std::shared_ptr<Interceptor> region) const = 0;

  // What the region below does with the op; null outside of any, and in one that is not enabled.
  const CastPolicy* policy_of(OpId op) const;

  std::shared_ptr<Interceptor> amp;  // the innermost region, or null
};

}  // namespace gradual::amp
