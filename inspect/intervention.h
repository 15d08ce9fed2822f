// An intervention makes one thing of a step exact and leaves all else as it is. A training that is replayed with it
// tells whether that thing does harm.
//
//   inspect::Intervention exact({{.part = inspect::ExactPart::zeroed, .site = "4", .operand = "forward_x"}});
//   { const inspect::InterventionScope scope(exact); run.step([&] { return cross_entropy(model(x), y); }); }
//
// It is an observer, but it writes the numbers that it makes exact. With an empty list nothing changes, to the bit.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "../core/observe/observer.h"
#include "../core/ops/dispatch.h"
#include "names.h"

namespace gradual::inspect {

// What is made exact. operand: all numbers of a quantised operand; zeroed, clipped: those of its numbers that rounding
// makes 0, and those beyond the largest of its format. sum: the sum of a product or a reduction, in f32 instead of the
// accumulator that the recipe names. result: the result of an op that the recipe rounds (Quantization::result). ops:
// ops of forward compute in f32 instead of a half dtype (f32_ops.h).
enum class ExactPart : std::uint8_t { operand, zeroed, clipped, sum, result, ops, count_ };
std::string_view to_string(ExactPart part);
ExactPart exact_part(std::string_view name);  // Error listing the names

struct Exact {
  ExactPart part = ExactPart::operand;
  std::string site = {};     // a module's path (with its children), or the program's line of an op; empty: everywhere
  std::string operand = {};  // its name in recipes: "forward_x"; of ops the op's: "softmax"; empty: each
  std::int64_t first = 0;    // step
  std::int64_t last = std::numeric_limits<std::int64_t>::max();

  bool operator==(const Exact&) const = default;
};
std::string to_string(const Exact& exact);  // "zeroed forward_x of 4, steps 0 to 7"

class Intervention final : public Observer {
 public:
  explicit Intervention(std::vector<Exact> exact);

  void begin_step(std::int64_t step) { step_ = step; }
  bool has(ExactPart part) const;
  bool wants_in_f32(const OpCall& call);
  std::int64_t touched() const { return touched_; }  // tensors that were written, and ops in f32, so far

  bool writes_numbers() const override { return true; }
  void before(const OpCall& call, const CallRecord& record) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

 private:
  // A running custom op: which of its inputs each storage depends on.
  struct Frame {
    enum : int { kFirst = 1, kOthers = 2 };
    std::map<std::uint64_t, int> inputs;
    std::string line = {};  // of a rewritten op, whose parts have the library's lines; empty: of a user's function
  };
  std::string line_of(const SourceLocation& where) const;  // the program's, of what runs now
  bool applies(const Exact& exact, ExactPart part, const std::string& site, const std::string& line,
               const std::string& operand) const;
  std::string operand_of(const QuantizerCall& call, const Replaced& product) const;
  void make_exact(const QuantizerCall& call, ExactPart part);

  std::vector<Exact> exact_;
  std::vector<Frame> frames_;
  std::int64_t step_ = 0;
  std::int64_t touched_ = 0;
};

// Installs an intervention, which must outlive it, for the ops of this thread. An intervention with ExactPart::ops
// needs it; for others an ObserverScope does the same. Error within a split (lab/split.h).
class InterventionScope : Pinned {
 public:
  explicit InterventionScope(Intervention& intervention);

 private:
  std::shared_ptr<Interceptor> stage_;
  ObserverScope observing_;
  StageScope amp_;
};

}  // namespace gradual::inspect
