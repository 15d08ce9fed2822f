// Runs the steps of a plan on values.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "../nn/module.h"
#include "plan.h"

namespace gradual::pt2 {

// The state of one call of a model.
struct Run {
  std::vector<Value> values;
  std::vector<char> apart;  // by value: a may_view that is a copy, where the file does not say it
  // Parameters, buffers, constants and the caller's inputs, whose memory a later step or the caller may write.
  std::vector<Tensor> state;
  CallSite site;

  Value& value(int id) { return values[static_cast<std::size_t>(id)]; }
};

class Executor {
 public:
  Executor(const Plan& plan, Run& run) : plan_(plan), run_(run) {}
  // Computes one step; afterwards values that no later step reads are still there. Errors name what is wrong, not the
  // step.
  void run(const Step& step);

 private:
  Value call(const Step& step);
  Value apart_from_state(const Step& step, Value result);
  const Step& maker(int id) const {
    return plan_.steps[static_cast<std::size_t>(plan_.made_by[static_cast<std::size_t>(id)])];
  }
  bool is_copy(const Step& made, int id) const;
  void note_copy(const Step& step);
  void write(const Step& step, const Value& result);
  void write_through(const Step& step);

  const Plan& plan_;
  Run& run_;
};

// `v` with the values that it refers to.
Value filled(const Value& v, const std::vector<Value>& values);
// The tensor in v, or null.
const Tensor* tensor_of(const Value& v);

// The scopes of the modules in which the current op runs. Outer modules that stay are not left and entered again.
class ModuleScopes {
 public:
  ModuleScopes() = default;
  ~ModuleScopes();
  ModuleScopes(const ModuleScopes&) = delete;
  ModuleScopes& operator=(const ModuleScopes&) = delete;
  void enter(const std::vector<nn::Module*>& modules, const SourceLocation& line);

 private:
  std::vector<std::pair<nn::Module*, std::unique_ptr<nn::ModuleCall>>> calls_;
};

}  // namespace gradual::pt2
