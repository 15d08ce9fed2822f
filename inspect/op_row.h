// What a row of the ledger and a row of the shadow have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "../core/observe/observer.h"
#include "layer_names.h"

namespace gradual::inspect {

// True for a source file of the library itself: its line says nothing to a program's author.
bool is_own_file(std::string_view path);

// What computes a row: an op of the table, a user's function, a rewritten op, or a quantiser.
enum class Source : std::uint8_t { op, function, rewritten, quantizer };

// An op, and where it was called.
struct OpRow {
  std::int64_t number = 0;  // of this row, from 0
  Phase phase = Phase::forward;
  std::string op = {};           // "linear", or the name of a user's function
  std::string parameter = {};    // the parameter that an optimizer updates or the op reads first: "fc2.weight"
  std::string backward_of = {};  // in backward: the op whose gradient this computes
  std::string module = {};
  std::string line = {};
  std::string cause = {};
  CauseKind cause_kind = CauseKind::program;
  std::string results = {};  // "[32, 512] f32"
  DType to = DType::f32;     // of the first result
  Source source = Source::op;
  OpId id = OpId::custom;  // CallRecord::op; custom for a quantiser
  bool own_line = false;   // `line` is the library's, as that of the lab's loss

  OpRow() = default;
  OpRow(std::size_t index, const OpCall& call, const CallRecord& record)
      : OpRow(index, record.context, called(call), call.where) {
    id = record.op;
    if (call.op == OpId::custom) source = record.replaced ? Source::rewritten : Source::function;
  }
  // Of a quantiser that runs now.
  static OpRow of_quantizer(std::size_t index) {
    OpRow row(index, gradual::context(), "quantize", gradual::context().line);
    row.source = Source::quantizer;
    return row;
  }

  // The layer; outside of all layers the program's line, or "the loss" and "the optimizer" for the library's own.
  std::string place() const {
    if (!module.empty()) return module;
    if (!own_line) return line;
    return phase == Phase::optimizer ? "the optimizer" : "the loss";
  }
  // "linear" for a rewritten linear too.
  std::string name() const { return source == Source::rewritten ? std::string(gradual::to_string(id)) : op; }

  // "adam_step_ of fc2.weight", "matmul (backward of linear) in layer fc1".
  std::string site(const LayerNames& name = {}) const {
    if (!parameter.empty()) return op + " of " + name(parameter);
    const std::string what = backward_of.empty() || backward_of == op ? op : op + " (backward of " + backward_of + ")";
    return module.empty() ? what : what + " in layer " + name(module);
  }

 private:
  OpRow(std::size_t index, const Context& c, std::string_view what, const SourceLocation& where)
      : number(static_cast<std::int64_t>(index)),
        phase(c.phase),
        op(what),
        backward_of(c.backward_of),
        module(c.module),
        line(file_line(where)),
        cause(c.cause->text),
        cause_kind(c.cause->kind),
        own_line(is_own_file(where.file_name())) {}
};

}  // namespace gradual::inspect
