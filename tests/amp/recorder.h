// What ran below autograd on this thread, in order.
#pragma once

#include <string>
#include <vector>

#include "../../core/ops/dispatch.h"

namespace gradual {

class Recorder final : public Interceptor {
 public:
  struct Seen {
    OpId op;
    DType in, out;
    std::string cause;
    Phase phase;
  };

  Recorder() : stage_(chain().observe, this) {}
  Outputs call(const OpCall& call) override {
    Outputs out = next_below_observe(call);
    DType in = DType::bool_;
    if (call.inputs.size() > 0 && call[0].defined()) in = call[0].dtype();
    seen.push_back({call.op, in, out[0].dtype(), context().cause->text, context().phase});
    return out;
  }
  int count(OpId op) const {
    int n = 0;
    for (const Seen& s : seen) n += s.op == op;
    return n;
  }
  // Casts that amp inserted.
  int amp_casts() const {
    int n = 0;
    for (const Seen& s : seen) n += s.op == OpId::cast && s.phase == Phase::forward && s.cause.starts_with("amp: ");
    return n;
  }

  std::vector<Seen> seen;

 private:
  StageScope stage_;
};

}  // namespace gradual
