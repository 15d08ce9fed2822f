// Prints every op as it runs.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "observer.h"

namespace gradual {

// One line an op, for example
//   forward   matmul          [32, 64] f16 x [64, 10] f16 -> [32, 10] f16   head            model.h:12      8.1 us
//   forward   cast            [32, 64] f32 -> [32, 64] f16                  head            model.h:12      1.2 us  # amp: matmul is lower
// phase (in backward: of which op), op, inputs and outputs, module, source line, time and, where the user did not
// write the op, why it is there. With counts, also what rounding did to its results. A call of an optimizer has a line for each
// of its parameters besides.
class Tracer : public Observer {
 public:
  using Sink = std::function<void(const std::string& line)>;  // lines without a newline
  explicit Tracer(Sink sink, bool counts = false) : sink_(std::move(sink)), counts_(counts) {}
  explicit Tracer(std::FILE* file = stderr, bool counts = false);

  bool wants_counts() const override { return counts_; }
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;

 private:
  Sink sink_;
  bool counts_;
};

}  // namespace gradual
