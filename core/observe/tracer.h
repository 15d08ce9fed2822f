// Prints every op as it runs.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "observer.h"

namespace gradual {

// One line per op, for example (columns narrowed here)
//   forward   matmul   [32, 64] f16 x [64, 10] f16 -> [32, 10] f16   head   model.h:12   8.1 us
//   forward   cast     [32, 64] f32 -> [32, 64] f16                  head   model.h:12   1.2 us  # amp: matmul is lower
// phase (in backward: the forward op), op, inputs and outputs, module, source line, time, and the cause of an op that
// the user did not write. With counts, also the effect of rounding on its results. An optimizer's call prints one more
// line per parameter.
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
