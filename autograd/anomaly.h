// Anomaly mode: where did the first Inf or NaN come from?
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../core/observe/observer.h"

namespace gradual {

// What a tensor held, non-finite elements aside.
struct ValueRange {
  Shape sizes;
  DType dtype = DType::f32;
  double min = 0, max = 0;  // of the finite elements; 0 where there are none
  std::int64_t nan = 0, positive_inf = 0, negative_inf = 0;
  std::int64_t first = -1;  // row-major number of the first non-finite element
  std::int64_t non_finite() const { return nan + positive_inf + negative_inf; }
};
ValueRange value_range(const Tensor& t);  // floating tensors

struct Anomaly {
  std::string op;
  int parameter = -1;       // of an optimizer's step: which of the call's parameters
  std::string backward_of;  // in backward: the op whose gradient was being computed
  Phase phase = Phase::forward;
  std::string module;
  std::string cause;     // where the user did not write the op
  SourceLocation where;  // the line that made the op; in backward the line of the forward op
  int output = 0;        // which output
  ValueRange result;
  struct Input {
    int index;  // among the op's inputs
    ValueRange range;
  };
  std::vector<Input>
      inputs;  // the floating ones, of a step those of the parameter; in place: input 0 as it is after the write
  std::string to_string() const;  // a paragraph for people
};

// Looks at every floating result of this thread while it lives, forward and backward, and stops at the first op that
// gave a NaN or an Inf. An op whose only non-finite results are -Inf which stood in its operands is passed over: that
// is how masks are written. Costs a pass over every result.
class AnomalyMode : private Observer {
 public:
  enum class OnFinding { raise, record };  // throw Error from the op, or go on: a pure f16 recipe overflows by design
  explicit AnomalyMode(OnFinding on_finding = OnFinding::raise) : on_finding_(on_finding), scope_(*this) {}

  const std::optional<Anomaly>& first() const { return first_; }

 private:
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void look(const OpCall& call, const Outputs& out, const CallRecord& record, int parameter);

  OnFinding on_finding_;
  std::optional<Anomaly> first_;
  ObserverScope scope_;
};

}  // namespace gradual
