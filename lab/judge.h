// Is it rounding, or is it a bug? A recorded step of a PyTorch model, judged op by op against its exported graph.
//
//   const pt2::Program program = pt2::read_program("net.pt2");
//   const Judgement a = judge(program, load_safetensors("A.safetensors").tensors);
//   if (const Judged* wrong = a.first()) ...          // wrong->name, wrong->op, wrong->line
//
// A record holds what went into and came out of each module's call, and the gradients of these tensors and of the
// parameters (docs/judge.md has the Python that writes one). The graph is computed again in f64, and starts anew from
// every recorded tensor. So each comparison sees only the ops between two records, and an error that spreads is named
// where it begins.
//
// What rounding explains, of each element: every op may round as the recorded dtype does, whatever the order of its
// sums. Products, sums, quotients, softmax, attention, norms, variances, cross entropy and mean errors have bounds
// (docs/judge.md derives them). For other ops there is an estimate: the operands are moved by some units of rounding,
// up, down and at random, and the largest of the results' changes is taken twice. Errors of unrecorded values are
// carried through the ops that follow in the same way. Where an op chooses among equal elements (judge_ties.h), or its
// derivative jumps, every choice is explained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../core/files/state_dict.h"
#include "../core/tensor/tensor.h"
#include "../pt2/program.h"

namespace gradual::lab {

enum class JudgedKind : std::uint8_t { value, gradient, parameter_gradient, buffer };

// One recorded tensor.
struct Judged {
  std::string name;  // in the record: "out.0:blocks.3.fc"
  JudgedKind kind = JudgedKind::value;
  DType dtype = DType::f32;          // as recorded
  std::string op;                    // that computed it: "aten.linear.default"; of a gradient the op of forward
  std::string line;                  // of Python
  std::vector<std::string> between;  // further ops since the tensors recorded before, which share the difference
  double difference = 0;             // from f64: 2-norm, relative
  double allowed = 0;                // what rounding explains: 2-norm, relative
  double sampled = -1;               // what sampled orders of the sums differ by: 2-norm, relative; -1: not sampled
  double worst = 0;                  // the largest difference of an element over what rounding explains; Inf for NaN

  bool explained() const { return worst <= 1; }
  // Explained by the bound over all orders, but far from what sampled orders give: worth a look, no verdict.
  bool unusual() const;
};

struct Judgement {
  std::vector<Judged> tensors;          // forward in the graph's order, then backward in its order, then buffers
  std::vector<std::string> not_judged;  // names of the record: random, or not in the graph

  // The first that rounding does not explain; null if it explains all.
  const Judged* first() const;
};

struct JudgeOptions {
  // Of tensors that are not recorded; none: the coarsest of the recorded ones.
  std::optional<DType> dtype;
};

// Error for a record without the model's inputs, or of other sizes.
Judgement judge(const pt2::Program& program, const StateDict& record, const JudgeOptions& options = {});

// The record of the same step as Gradual computes it in `dtype`: from the record's inputs, parameters and gradients of
// the outputs. f16 and bf16: in f32 under autocast to that dtype. Error for other dtypes than these and f32 and f64.
StateDict record_step(const pt2::Program& program, const StateDict& record, DType dtype = DType::f32);

}  // namespace gradual::lab
