// Anomaly mode: finds the op that made the first Inf or NaN.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../core/observe/observer.h"

namespace gradual {

// The range of a tensor's finite elements, and counts of the others.
struct ValueRange {
  Shape sizes;
  DType dtype = DType::f32;
  // of the finite elements; 0 if there are none
  double min = 0;
  double max = 0;
  std::int64_t nan = 0;
  std::int64_t positive_inf = 0;
  std::int64_t negative_inf = 0;
  std::int64_t first = -1;  // row-major number of the first non-finite element
  std::int64_t non_finite() const { return nan + positive_inf + negative_inf; }
};
ValueRange value_range(const Tensor& t);  // floating tensors

struct Anomaly {
  std::string op;
  int parameter = -1;       // in an optimizer's step: index among the call's parameters
  std::string backward_of;  // in backward: the op whose gradient was being computed
  Phase phase = Phase::forward;
  std::string module;
  std::string cause;     // if the user did not write the op
  SourceLocation where;  // the line that made the op; in backward the line of the forward op
  int output = 0;        // which output
  ValueRange result;
  struct Input {
    int index;  // among the op's inputs
    ValueRange range;
  };
  std::vector<Input> inputs;  // the floating ones; in a step those of the parameter; in place: input 0 after the write
  std::string to_string() const;  // a readable paragraph
};

// While it lives, checks every floating result of this thread, in forward and backward, and stops at the first op that
// gave a NaN or an Inf. It ignores an op whose only non-finite results are -Inf that its operands contained, because
// masks are written in this way. It costs a pass over every result.
class AnomalyMode : private Observer {
 public:
  enum class OnFinding { raise, record };  // record continues: a pure f16 recipe overflows by design
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
