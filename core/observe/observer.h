// The Observe stage: all code that inspects numbers. It is the innermost stage, so it sees the dtypes of the kernels,
// the casts that amp and promotion insert, and the kernels of backward and of the optimizer. Without observers it costs
// nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../formats/convert.h"
#include "../ops/dispatch.h"

namespace gradual {

struct CallRecord {
  double seconds = 0;  // of the call itself, without the ops inside a user's function; on a GPU by the GPU's clock
  std::vector<std::string> kernels;  // the kernels that ran on a GPU, in launch order
  CastCounts counts;                 // of its narrowing stores; zero unless an installed observer wants_counts()
  // For an optimizer's op: the counts of each parameter (core/ops/parameter_inputs.h). Empty for other ops.
  std::vector<CastCounts> counts_by_parameter = {};
  Context context;  // where the call came from
  // The op; of a rewritten op (amp/rewrite.h) the one that it replaces; custom: a user's function.
  OpId op = OpId::custom;
  const Replaced* replaced = nullptr;   // of a rewritten op; null: it is none
  const CustomAttrs* within = nullptr;  // the innermost custom op in which it runs; null: none
  std::uint64_t node = 0;               // its number on the tape (Node::sequence); 0: it is not recorded
};

// For messages: the op's name; for a custom op the name of the user's function.
std::string_view called(const OpCall& call);

// The innermost custom op that runs on this thread and is observed; null: none.
const CustomAttrs* running_custom_op();

struct QuantizerCall;
struct UpdateEvent;

// Receives every op of this thread; a composite op as its parts. Ops that an observer runs are not observed. An
// exception from an observer propagates through the op.
struct Observer {
  virtual ~Observer() = default;
  virtual bool wants_counts() const { return false; }
  // True if it writes the numbers that it sees (an intervention). Where a kernel computes what these ops show, their
  // numbers are then taken instead of the kernel's.
  virtual bool writes_numbers() const { return false; }
  // The record has no seconds, kernels and counts yet.
  virtual void before(const OpCall&, const CallRecord&) {}
  virtual void after(const OpCall&, const Outputs&, const CallRecord&) {}
  // Quantisers are not ops: they run inside a rewritten contraction, or between steps. context() tells where.
  virtual void quantized(const QuantizerCall&) {}
  // Around the update of each parameter by an optimizer (update_event.h), whatever ops it takes.
  virtual void before_update(const UpdateEvent&) {}
  virtual void after_update(const UpdateEvent&) {}
};

// Installs an observer on this thread while the scope lives. Scopes nest: all installed observers receive each op.
class ObserverScope : Pinned {
 public:
  explicit ObserverScope(Observer& observer);
  ~ObserverScope();

  static const std::vector<Observer*>& installed();  // of this thread

 private:
  Observer* observer_;
};

}  // namespace gradual
