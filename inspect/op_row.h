// What a row of the ledger and a row of the shadow have in common: an op, and where it was called.
#pragma once

#include "../core/ops/dispatch.h"

namespace gradual::inspect {

struct OpRow {
  std::int64_t number = 0;  // of this row, from 0
  Phase phase = Phase::forward;
  std::string op = {};           // "linear", or the name of a user's function
  std::string parameter = {};    // the parameter that an optimizer updates or the op reads first: "fc2.weight"
  std::string backward_of = {};  // in backward: the op whose gradient this computes
  std::string module = {}, line = {}, cause = {};
  std::string results = {};  // "[32, 512] f32"
  DType to = DType::f32;     // of the first result

  OpRow() = default;
  OpRow(std::size_t index, const Context& c, std::string_view what, const SourceLocation& where)
      : number(static_cast<std::int64_t>(index)),
        phase(c.phase),
        op(what),
        backward_of(c.backward_of),
        module(c.module),
        line(file_line(where)),
        cause(c.cause) {}

  // "adam_step_ of fc2.weight", "matmul (backward of linear) in layer fc1".
  std::string site() const {
    if (!parameter.empty()) return op + " of " + parameter;
    const std::string what = backward_of.empty() || backward_of == op ? op : op + " (backward of " + backward_of + ")";
    return module.empty() ? what : what + " in layer " + module;
  }
};

}  // namespace gradual::inspect
