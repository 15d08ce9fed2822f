// The Observe stage: everything that looks at numbers. It sits innermost, so it sees true dtypes, the casts that amp
// and promotion inserted, and the kernels of backward and of the optimizer. It costs nothing where none is installed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../formats/convert.h"
#include "../ops/dispatch.h"

namespace gradual {

struct CallRecord {
  double seconds =
      0;  // of the call itself: the ops that a user's function ran inside are not in it; on a GPU by its clock
  std::vector<std::string> kernels;  // what ran on a GPU, launch by launch
  CastCounts counts;                 // what its narrowing stores did; zero unless an installed observer wants_counts()
  // Of an optimizer's row: the counts of each of its parameters (core/ops/parameter_inputs.h). Empty: there are none.
  std::vector<CastCounts> counts_by_parameter = {};
  Context context;  // where the call came from
};

// For people: the op's name, or that of the user's function that a custom op is.
std::string_view called(const OpCall& call);

// Told of every op of this thread, composite rows by their parts. Ops that an observer runs are not observed. An
// exception from an observer leaves through the op.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual bool wants_counts() const { return false; }
  virtual void before(const OpCall&) {}
  virtual void after(const OpCall&, const Outputs&, const CallRecord&) {}
};

// Installs an observer on this thread while the scope lives. Scopes nest: all installed observers are told.
class ObserverScope : Pinned {
 public:
  explicit ObserverScope(Observer& observer);
  ~ObserverScope();

 private:
  Observer* observer_;
};

}  // namespace gradual
